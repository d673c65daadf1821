// Prints the configuration keys that Debezium's and Kafka's own classes declare, one a line: who declares it, and its name.
//
// Run by `walrelay-dev conformance-debezium` with Debezium Server's jars as class path; contacts nothing.

import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.util.Set;
import java.util.TreeSet;
import org.apache.kafka.common.config.ConfigDef;

class DeclaredKeys {
    static final Set<String> LINES = new TreeSet<>();

    public static void main(String[] arguments) throws Exception {
        fields("connector", "io.debezium.connector.postgresql.PostgresConnectorConfig");
        fields("connector", "io.debezium.heartbeat.Heartbeat");
        fields("connector", "io.debezium.heartbeat.DatabaseHeartbeatImpl");
        fields("connector", "io.debezium.schema.AbstractTopicNamingStrategy");
        fields("router", "io.debezium.transforms.outbox.EventRouterConfigDefinition");
        fields("engine", "io.debezium.embedded.EmbeddedEngineConfig");
        fields("engine", "io.debezium.embedded.async.AsyncEngineConfig");
        definition("connect", "org.apache.kafka.connect.runtime.SourceConnectorConfig", "configDef");
        definition("producer", "org.apache.kafka.clients.producer.ProducerConfig", "configDef");
        definition("json", "org.apache.kafka.connect.json.JsonConverterConfig", "configDef");
        definition("string", "org.apache.kafka.connect.storage.StringConverterConfig", "configDef");
        definition("binary", "io.debezium.converters.BinaryDataConverter", "config");
        constants("server", "io.debezium.server.DebeziumServer");
        constants("server", "io.debezium.server.kafka.KafkaChangeConsumer");
        LINES.forEach(System.out::println);
    }

    /** Static fields of Debezium's type, those that are inherited included. */
    static void fields(String who, String name) throws Exception {
        for (Class<?> type = Class.forName(name); type != null; type = type.getSuperclass()) {
            fieldsOf(who, type);
            for (Class<?> from : type.getInterfaces()) {
                fieldsOf(who, from);
            }
        }
    }

    static void fieldsOf(String who, Class<?> type) throws Exception {
        for (Field field : type.getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) || field.getType() != io.debezium.config.Field.class) {
                continue;
            }
            field.setAccessible(true);
            if (field.get(null) instanceof io.debezium.config.Field declared) {
                LINES.add(who + " " + declared.name());
            }
        }
    }

    /** Debezium Server's keys are texts in its classes. */
    static void constants(String who, String name) throws Exception {
        for (Field field : Class.forName(name).getDeclaredFields()) {
            if (!Modifier.isStatic(field.getModifiers()) || field.getType() != String.class) {
                continue;
            }
            field.setAccessible(true);
            var value = (String) field.get(null);
            if (value.startsWith("debezium.") && !value.endsWith(".")) {
                LINES.add(who + " " + value);
            }
        }
    }

    static void definition(String who, String name, String method) throws Exception {
        var type = Class.forName(name);
        var getter = type.getDeclaredMethod(method);
        getter.setAccessible(true);
        var owner = Modifier.isStatic(getter.getModifiers()) ? null : type.getDeclaredConstructor().newInstance();
        for (String key : ((ConfigDef) getter.invoke(owner)).names()) {
            LINES.add(who + " " + key);
        }
    }
}
