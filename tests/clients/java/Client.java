// The Java client: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE.

import com.rabbitmq.client.AMQP;
import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.DefaultConsumer;
import com.rabbitmq.client.Envelope;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;

public final class Client {
  private static final int MESSAGES = 200;

  public static void main(String[] arguments) throws Exception {
    String queue = arguments[2];
    try (Connection publisher = connect(arguments[0]); Connection consumer = connect(arguments[1])) {
      publish(publisher, queue);
      consume(consumer, queue);
    }
    System.out.println("ok " + MESSAGES);
  }

  private static Connection connect(String uri) throws Exception {
    ConnectionFactory factory = new ConnectionFactory();
    factory.setUri(uri);
    return factory.newConnection();
  }

  private static void publish(Connection connection, String queue) throws Exception {
    Channel channel = connection.createChannel();
    channel.exchangeDeclare("clients", "topic", true);
    channel.queueDeclare(queue, true, false, false, null);
    channel.queueBind(queue, "clients", queue + ".#");
    channel.confirmSelect();
    List<String> returned = Collections.synchronizedList(new ArrayList<>());
    channel.addReturnListener((code, text, exchange, key, properties, body) -> returned.add(code + " " + new String(body)));
    for (int number = 0; number < MESSAGES; number++) {
      AMQP.BasicProperties properties =
          new AMQP.BasicProperties.Builder()
              .deliveryMode(2)
              .messageId(Integer.toString(number))
              .headers(Collections.<String, Object>singletonMap("number", number))
              .build();
      channel.basicPublish("clients", queue + ".n" + number, true, properties, ("message " + number).getBytes());
    }
    channel.basicPublish("clients", "nowhere", true, null, "lost".getBytes());
    channel.waitForConfirmsOrDie(20_000);
    check(returned.equals(Collections.singletonList("312 lost")), "returned: " + returned);
  }

  private static void consume(Connection connection, String queue) throws Exception {
    Channel channel = connection.createChannel();
    channel.basicQos(20);
    BlockingQueue<String> received = new LinkedBlockingQueue<>();
    String tag =
        channel.basicConsume(
            queue,
            false,
            new DefaultConsumer(channel) {
              @Override
              public void handleDelivery(String consumerTag, Envelope envelope, AMQP.BasicProperties properties, byte[] body)
                  throws IOException {
                received.add(new String(body) + " id " + properties.getMessageId() + " header " + properties.getHeaders().get("number"));
                channel.basicAck(envelope.getDeliveryTag(), false);
              }
            });
    for (int number = 0; number < MESSAGES; number++) {
      String message = received.poll(20, TimeUnit.SECONDS);
      check(("message " + number + " id " + number + " header " + number).equals(message), "message " + number + ": " + message);
    }
    channel.basicCancel(tag);
    check(channel.queueDeclarePassive(queue).getMessageCount() == 0, "the queue is not empty");
    channel.queueDelete(queue);
  }

  private static void check(boolean holds, String otherwise) {
    if (!holds) {
      throw new AssertionError(otherwise);
    }
  }
}
