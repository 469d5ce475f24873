//! lapin: declares, binds and publishes with confirms at one node, consumes at another. Arguments: PUBLISH_URI CONSUME_URI QUEUE.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions,
    ConfirmSelectOptions, ExchangeDeclareOptions, QueueBindOptions, QueueDeclareOptions,
    QueueDeleteOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Confirmation, Connection, ConnectionProperties, ExchangeKind};

const MESSAGES: usize = 200;
const PATIENCE: Duration = Duration::from_secs(20);

#[tokio::main]
async fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let mut next = |name| {
        arguments
            .next()
            .with_context(|| format!("argument {name} is missing"))
    };
    let (publish_uri, consume_uri, queue) =
        (next("PUBLISH_URI")?, next("CONSUME_URI")?, next("QUEUE")?);
    publish(&publish_uri, &queue).await?;
    consume(&consume_uri, &queue).await?;
    println!("ok {MESSAGES}");
    Ok(())
}

async fn publish(uri: &str, queue: &str) -> Result<()> {
    let connection = Connection::connect(uri, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let durable = ExchangeDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .exchange_declare(
            "clients".into(),
            ExchangeKind::Topic,
            durable,
            FieldTable::default(),
        )
        .await?;
    let durable = QueueDeclareOptions {
        durable: true,
        ..Default::default()
    };
    channel
        .queue_declare(queue.into(), durable, FieldTable::default())
        .await?;
    let key = format!("{queue}.#");
    channel
        .queue_bind(
            queue.into(),
            "clients".into(),
            key.as_str().into(),
            QueueBindOptions::default(),
            FieldTable::default(),
        )
        .await?;
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await?;
    let mandatory = BasicPublishOptions {
        mandatory: true,
        ..Default::default()
    };
    let mut confirms = Vec::new();
    for number in 0..MESSAGES {
        let (key, body) = (format!("{queue}.n{number}"), format!("message {number}"));
        let properties = BasicProperties::default()
            .with_delivery_mode(2)
            .with_message_id(number.to_string().into());
        let confirm = channel
            .basic_publish(
                "clients".into(),
                key.as_str().into(),
                mandatory,
                body.as_bytes(),
                properties,
            )
            .await?;
        confirms.push(confirm);
    }
    for (number, confirm) in confirms.into_iter().enumerate() {
        let confirmation = tokio::time::timeout(PATIENCE, confirm).await??;
        ensure!(
            confirmation == Confirmation::Ack(None),
            "message {number}: {confirmation:?}"
        );
    }
    let confirm = channel
        .basic_publish(
            "clients".into(),
            "nowhere".into(),
            mandatory,
            b"lost",
            BasicProperties::default(),
        )
        .await?;
    let Confirmation::Ack(Some(returned)) = tokio::time::timeout(PATIENCE, confirm).await?? else {
        bail!("an unroutable message was not returned");
    };
    ensure!(
        returned.reply_code == 312 && returned.delivery.data == b"lost",
        "returned: {returned:?}"
    );
    connection.close(200, "bye".into()).await?;
    Ok(())
}

async fn consume(uri: &str, queue: &str) -> Result<()> {
    let connection = Connection::connect(uri, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    channel.basic_qos(20, BasicQosOptions::default()).await?;
    let mut consumer = channel
        .basic_consume(
            queue.into(),
            "lapin".into(),
            BasicConsumeOptions::default(),
            FieldTable::default(),
        )
        .await?;
    for number in 0..MESSAGES {
        let delivery = tokio::time::timeout(PATIENCE, consumer.next())
            .await?
            .context("the consumer ended")??;
        ensure!(
            delivery.data == format!("message {number}").into_bytes(),
            "message {number}: {delivery:?}"
        );
        delivery.ack(BasicAckOptions::default()).await?;
    }
    let passive = QueueDeclareOptions {
        passive: true,
        ..Default::default()
    };
    let declared = channel
        .queue_declare(queue.into(), passive, FieldTable::default())
        .await?;
    ensure!(
        declared.message_count() == 0,
        "{} messages are left",
        declared.message_count()
    );
    channel
        .queue_delete(queue.into(), QueueDeleteOptions::default())
        .await?;
    connection.close(200, "bye".into()).await?;
    Ok(())
}
