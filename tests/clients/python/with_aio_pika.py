"""aio-pika: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE."""

import asyncio
import sys

import aio_pika

MESSAGES = 200


async def main(publish_uri: str, consume_uri: str, name: str) -> None:
    publisher = await aio_pika.connect_robust(publish_uri)
    consumer = await aio_pika.connect_robust(consume_uri)
    async with publisher, consumer:
        channel = await publisher.channel(publisher_confirms=True, on_return_raises=True)
        exchange = await channel.declare_exchange("clients", aio_pika.ExchangeType.TOPIC, durable=True)
        queue = await channel.declare_queue(name, durable=True)
        await queue.bind(exchange, f"{name}.#")
        for number in range(MESSAGES):
            message = aio_pika.Message(
                b"message %d" % number, delivery_mode=aio_pika.DeliveryMode.PERSISTENT, message_id=str(number), headers={"number": number}
            )
            await exchange.publish(message, f"{name}.n{number}", mandatory=True, timeout=20)
        try:
            await exchange.publish(aio_pika.Message(b"lost"), "nowhere", mandatory=True, timeout=20)
            raise AssertionError("an unroutable message was not returned")
        except aio_pika.exceptions.DeliveryError:
            pass

        away = await consumer.channel()
        await away.set_qos(prefetch_count=20)
        queue = await away.get_queue(name)
        received = 0
        async with queue.iterator(timeout=20) as messages:
            async for message in messages:
                assert message.body == b"message %d" % received and message.headers == {"number": received}
                await message.ack()
                received += 1
                if received == MESSAGES:
                    break
        assert await queue.get(fail=False) is None
        await queue.delete(if_unused=False, if_empty=False)
    print(f"ok {received}")


asyncio.run(main(*sys.argv[1:]))
