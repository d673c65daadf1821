"""Reads records as JSON lines, and prints what CloudEvents' SDK makes of them. See src/sdk.rs."""

import json
import sys

from cloudevents.kafka import KafkaMessage, from_binary, from_structured


def raw(text):
    return None if text is None else bytes.fromhex(text)


for line in sys.stdin:
    record = json.loads(line)
    headers = {name: raw(value) for name, value in record["headers"]}
    message = KafkaMessage(headers=headers, key=raw(record["key"]), value=raw(record["value"]))
    if headers["content-type"].startswith(b"application/cloudevents"):
        event = from_structured(message)
    else:
        event = from_binary(message, data_unmarshaller=lambda data: data)
    attributes = {name: value for name, value in event.get_attributes().items() if name != "partitionkey"}
    data = event.get_data()
    held = {"data_hex": data.hex()} if isinstance(data, bytes) else {"data": data}
    print(json.dumps({"attributes": attributes, **held}))
