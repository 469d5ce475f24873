// amqplib: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE.
'use strict';

const assert = require('node:assert');
const amqp = require('amqplib');

const MESSAGES = 200;

async function main(publishUri, consumeUri, queue) {
  const publisher = await amqp.connect(publishUri);
  const channel = await publisher.createConfirmChannel();
  await channel.assertExchange('clients', 'topic', { durable: true });
  await channel.assertQueue(queue, { durable: true });
  await channel.bindQueue(queue, 'clients', `${queue}.#`);
  const returned = [];
  channel.on('return', (message) => returned.push(message.content.toString()));
  for (let number = 0; number < MESSAGES; number += 1) {
    channel.publish('clients', `${queue}.n${number}`, Buffer.from(`message ${number}`), {
      persistent: true,
      mandatory: true,
      messageId: String(number),
      headers: { number, nested: { a: [1, 'b'] } },
    });
  }
  channel.publish('clients', 'nowhere', Buffer.from('lost'), { mandatory: true });
  await channel.waitForConfirms();
  assert.deepStrictEqual(returned, ['lost']);

  const consumer = await amqp.connect(consumeUri);
  const away = await consumer.createChannel();
  await away.prefetch(20);
  let received = 0;
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`only ${received} messages came`)), 20000);
    const onMessage = (message) => {
      try {
        assert.strictEqual(message.content.toString(), `message ${received}`);
        assert.strictEqual(message.properties.messageId, String(received));
        assert.deepStrictEqual({ ...message.properties.headers }, { number: received, nested: { a: [1, 'b'] } });
        away.ack(message);
        received += 1;
        if (received === MESSAGES) {
          clearTimeout(timer);
          resolve();
        }
      } catch (error) {
        reject(error);
      }
    };
    away.consume(queue, onMessage).catch(reject);
  });
  assert.strictEqual((await away.checkQueue(queue)).messageCount, 0);
  await away.deleteQueue(queue);
  await consumer.close();
  await publisher.close();
  console.log(`ok ${received}`);
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
