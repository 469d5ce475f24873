//! The listener, over TCP: clients that speak HTTP, something else, or nothing.
#![allow(clippy::unwrap_used, missing_docs)]

mod common;

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(10);

async fn serve() -> (SocketAddr, tokio::task::JoinHandle<()>) {
    let api = common::ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (
        address,
        tokio::spawn(warren_management::serve(api.node, listener)),
    )
}

/// All that is answered to `bytes` until the connection is closed.
async fn answer(address: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut answer))
        .await
        .expect("the connection is closed");
    // A reset after the answer is a close, too: the server does not read on.
    if let Err(error) = read {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn http_is_answered_and_the_client_is_known_by_its_address() {
    let (address, serving) = serve().await;
    let health = answer(
        address,
        b"GET /api/health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
    )
    .await;
    assert!(
        health.starts_with("HTTP/1.1 200") && health.ends_with("{\"status\":\"ok\"}"),
        "{health}"
    );
    // Guest may log in from loopback only.
    let whoami = answer(address, b"GET /api/whoami HTTP/1.1\r\nhost: x\r\nauthorization: Basic Z3Vlc3Q6Z3Vlc3Q=\r\nconnection: close\r\n\r\n").await;
    assert!(whoami.contains("\"administrator\""), "{whoami}");
    serving.abort();
    let _ = serving.await;
    assert!(
        TcpStream::connect(address).await.is_err(),
        "the port is closed when serving is dropped"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_http_is_refused_and_closed() {
    let (address, _serving) = serve().await;
    let tls_hello = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0\0\0\0\0\0\0\0\0\0\r\n\r\n";
    for garbage in [
        &b"AMQP\x00\x00\x09\x01\r\n\r\n"[..],
        b"\x00\xff\x00\xff\r\n\r\n",
        tls_hello,
        b"GET / HTTP/9.9\r\n\r\n",
    ] {
        let answer = answer(address, garbage).await;
        assert!(
            answer.is_empty() || answer.starts_with("HTTP/1.1 400"),
            "{garbage:?}: {answer}"
        );
    }
    let mut huge = b"GET /api/health HTTP/1.1\r\nx: ".to_vec();
    huge.resize(100_000, b'a');
    assert!(
        answer(address, &huge).await.starts_with("HTTP/1.1 431"),
        "heads are bounded"
    );
    let health = answer(address, b"GET /api/health HTTP/1.0\r\n\r\n").await;
    assert!(health.contains(" 200 "), "others are served on: {health}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_head_does_not_hold_a_connection() {
    let (address, _serving) = serve().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /api/health HT").await.unwrap();
    let mut answer = Vec::new();
    let _ = timeout(Duration::from_secs(30), stream.read_to_end(&mut answer))
        .await
        .expect("the connection is closed");
    assert!(!String::from_utf8_lossy(&answer).contains(" 200 "));
}
