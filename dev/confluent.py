"""Reads records as JSON lines (hex), and prints their values as Confluent's JSON deserializer reads them."""

import json
import sys

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.json_schema import JSONDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

deserialize = JSONDeserializer(None, schema_registry_client=SchemaRegistryClient({"url": sys.argv[1]}))
context = SerializationContext("topic", MessageField.VALUE)
for line in sys.stdin:
    value = json.loads(line)["value"]
    print(json.dumps(None if value is None else deserialize(bytes.fromhex(value), context)))
