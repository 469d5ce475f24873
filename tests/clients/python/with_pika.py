"""pika: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE."""

import sys

import pika

MESSAGES = 200


def main(publish_uri: str, consume_uri: str, queue: str) -> None:
    publisher = pika.BlockingConnection(pika.URLParameters(publish_uri))
    channel = publisher.channel()
    channel.exchange_declare("clients", "topic", durable=True)
    channel.queue_declare(queue, durable=True, arguments={"x-note": "pika"})
    channel.queue_bind(queue, "clients", f"{queue}.#")
    channel.confirm_delivery()
    for number in range(MESSAGES):
        properties = pika.BasicProperties(delivery_mode=2, message_id=str(number), headers={"number": number, "nested": {"a": [1, "b", None]}})
        channel.basic_publish("clients", f"{queue}.n{number}", b"message %d" % number, properties, mandatory=True)
    try:
        channel.basic_publish("clients", "nowhere", b"lost", mandatory=True)
        raise AssertionError("an unroutable message was not returned")
    except pika.exceptions.UnroutableError as error:
        assert error.messages[0].body == b"lost"

    consumer = pika.BlockingConnection(pika.URLParameters(consume_uri))
    channel = consumer.channel()
    channel.basic_qos(prefetch_count=20)
    received = 0
    for method, properties, body in channel.consume(queue, inactivity_timeout=20):
        assert method is not None, f"only {received} messages came"
        assert body == b"message %d" % received and properties.message_id == str(received)
        assert properties.headers == {"number": received, "nested": {"a": [1, "b", None]}}
        channel.basic_ack(method.delivery_tag)
        received += 1
        if received == MESSAGES:
            break
    channel.cancel()
    assert channel.queue_declare(queue, passive=True).method.message_count == 0
    channel.queue_delete(queue)
    consumer.close()
    publisher.close()
    print(f"ok {received}")


main(*sys.argv[1:])
