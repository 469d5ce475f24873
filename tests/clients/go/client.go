// amqp091-go: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

const messages = 200

func main() {
	publisher, err := amqp.Dial(os.Args[1])
	check(err)
	consumer, err := amqp.Dial(os.Args[2])
	check(err)
	queue := os.Args[3]
	publish(publisher, queue)
	consume(consumer, queue)
	check(consumer.Close())
	check(publisher.Close())
	fmt.Println("ok", messages)
}

func publish(connection *amqp.Connection, queue string) {
	channel, err := connection.Channel()
	check(err)
	check(channel.ExchangeDeclare("clients", "topic", true, false, false, false, nil))
	_, err = channel.QueueDeclare(queue, true, false, false, false, nil)
	check(err)
	check(channel.QueueBind(queue, queue+".#", "clients", false, nil))
	check(channel.Confirm(false))
	returns := channel.NotifyReturn(make(chan amqp.Return, 10))
	confirmations := channel.NotifyPublish(make(chan amqp.Confirmation, messages+1))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for number := 0; number < messages; number++ {
		check(channel.PublishWithContext(ctx, "clients", fmt.Sprintf("%s.n%d", queue, number), true, false, amqp.Publishing{
			DeliveryMode: amqp.Persistent,
			MessageId:    fmt.Sprint(number),
			Headers:      amqp.Table{"number": int32(number), "nested": amqp.Table{"a": []interface{}{int32(1), "b", nil}}},
			Body:         []byte(fmt.Sprintf("message %d", number)),
		}))
	}
	check(channel.PublishWithContext(ctx, "clients", "nowhere", true, false, amqp.Publishing{Body: []byte("lost")}))
	for number := 0; number <= messages; number++ {
		select {
		case confirmation := <-confirmations:
			if !confirmation.Ack || confirmation.DeliveryTag != uint64(number+1) {
				log.Fatalf("confirmation %d: %+v", number+1, confirmation)
			}
		case <-ctx.Done():
			log.Fatalf("only %d confirmations", number)
		}
	}
	select {
	case returned := <-returns:
		if returned.ReplyCode != 312 || string(returned.Body) != "lost" {
			log.Fatalf("returned: %+v", returned)
		}
	default:
		log.Fatal("an unroutable message was confirmed and not returned")
	}
}

func consume(connection *amqp.Connection, queue string) {
	channel, err := connection.Channel()
	check(err)
	check(channel.Qos(20, 0, false))
	deliveries, err := channel.Consume(queue, "go", false, false, false, false, nil)
	check(err)
	for number := 0; number < messages; number++ {
		select {
		case delivery := <-deliveries:
			if string(delivery.Body) != fmt.Sprintf("message %d", number) || delivery.Headers["number"] != int32(number) {
				log.Fatalf("message %d: %q %v", number, delivery.Body, delivery.Headers)
			}
			check(delivery.Ack(false))
		case <-time.After(20 * time.Second):
			log.Fatalf("only %d messages", number)
		}
	}
	check(channel.Cancel("go", false))
	declared, err := channel.QueueDeclarePassive(queue, true, false, false, false, nil)
	check(err)
	if declared.Messages != 0 {
		log.Fatalf("%d messages are left", declared.Messages)
	}
	_, err = channel.QueueDelete(queue, false, false, false)
	check(err)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
