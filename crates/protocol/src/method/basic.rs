//! Arguments of the classes `basic` (60) and `confirm` (85).

use super::fields::arguments;
use crate::shortstr::ShortStr;
use crate::table::Table;

arguments! {
    /// `basic.qos`
    BasicQos {
        /// Window in bytes; 0 for none.
        prefetch_size: u32,
        /// Window in messages; 0 for none.
        prefetch_count: u16,
        /// RabbitMQ: shared by the whole channel rather than set per new consumer.
        global: bool,
    }

    /// `basic.consume`
    BasicConsume<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// The consumer's tag; empty for one of the server's choice.
        consumer_tag: ShortStr<'a>,
        /// Not the connection's own messages.
        no_local: bool,
        /// Deliveries count as acknowledged.
        no_ack: bool,
        /// The only consumer of the queue.
        exclusive: bool,
        /// Send no answer.
        no_wait: bool,
        /// The consumer's arguments.
        arguments: Table<'a>,
    }

    /// `basic.consume-ok`
    BasicConsumeOk<'a> {
        /// The consumer's tag.
        consumer_tag: ShortStr<'a>,
    }

    /// `basic.cancel`; also sent by the server, when a queue goes away.
    BasicCancel<'a> {
        /// The consumer's tag.
        consumer_tag: ShortStr<'a>,
        /// Send no answer.
        no_wait: bool,
    }

    /// `basic.cancel-ok`
    BasicCancelOk<'a> {
        /// The consumer's tag.
        consumer_tag: ShortStr<'a>,
    }

    /// `basic.publish`; content follows.
    BasicPublish<'a> skip(u16) {
        /// The exchange; empty for the default one.
        exchange: ShortStr<'a>,
        /// The routing key.
        routing_key: ShortStr<'a>,
        /// Return it if it reaches no queue.
        mandatory: bool,
        /// Return it if it reaches no consumer at once; not implemented by RabbitMQ.
        immediate: bool,
    }

    /// `basic.return`; content follows.
    BasicReturn<'a> {
        /// Why, as a number.
        reply_code: u16,
        /// Why, as text.
        reply_text: ShortStr<'a>,
        /// The exchange it was published to.
        exchange: ShortStr<'a>,
        /// Its routing key.
        routing_key: ShortStr<'a>,
    }

    /// `basic.deliver`; content follows. [`crate::write_deliver`] writes both at once.
    BasicDeliver<'a> {
        /// The consumer's tag.
        consumer_tag: ShortStr<'a>,
        /// The delivery's number on this channel.
        delivery_tag: u64,
        /// It may have been delivered before.
        redelivered: bool,
        /// The exchange it was published to.
        exchange: ShortStr<'a>,
        /// Its routing key.
        routing_key: ShortStr<'a>,
    }

    /// `basic.get`
    BasicGet<'a> skip(u16) {
        /// The queue; empty for the last one that this channel declared.
        queue: ShortStr<'a>,
        /// The message counts as acknowledged.
        no_ack: bool,
    }

    /// `basic.get-ok`; content follows.
    BasicGetOk<'a> {
        /// The delivery's number on this channel.
        delivery_tag: u64,
        /// It may have been delivered before.
        redelivered: bool,
        /// The exchange it was published to.
        exchange: ShortStr<'a>,
        /// Its routing key.
        routing_key: ShortStr<'a>,
        /// Messages left in the queue.
        message_count: u32,
    }

    /// `basic.ack`; from the server it confirms publishes.
    BasicAck {
        /// The delivery or the publish.
        delivery_tag: u64,
        /// And all before it.
        multiple: bool,
    }

    /// `basic.reject`
    BasicReject {
        /// The delivery.
        delivery_tag: u64,
        /// Back to the queue rather than dropped or dead-lettered.
        requeue: bool,
    }

    /// `basic.recover-async`
    BasicRecoverAsync {
        /// Back to the queue rather than to the same consumer.
        requeue: bool,
    }

    /// `basic.recover`
    BasicRecover {
        /// Back to the queue rather than to the same consumer.
        requeue: bool,
    }

    /// `basic.nack` (RabbitMQ); from the server it says that a publish was not taken.
    BasicNack {
        /// The delivery or the publish.
        delivery_tag: u64,
        /// And all before it.
        multiple: bool,
        /// Back to the queue rather than dropped or dead-lettered.
        requeue: bool,
    }

    /// `confirm.select` (RabbitMQ)
    ConfirmSelect {
        /// Send no answer.
        no_wait: bool,
    }
}
