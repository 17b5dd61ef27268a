//! hyper, as Rust gateways use it: pings, adaptive windows, many calls at once, calls dropped in the middle.

use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::mpsc;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Messages = mpsc::Sender<Result<Frame<Bytes>, std::convert::Infallible>>;
type Body = StreamBody<
    std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>, std::convert::Infallible>> + Send>>,
>;

fn framed(message: &[u8]) -> Frame<Bytes> {
    let mut framed = BytesMut::new();
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    Frame::data(framed.freeze())
}

/// One call: the way to send messages, and the response.
async fn call(mut client: SendRequest<Body>, uri: &str) -> Result<(Messages, Response<Incoming>), Failure> {
    let (messages, mut taken) = mpsc::channel(4);
    let stream = futures_util::stream::poll_fn(move |context| taken.poll_recv(context));
    let request = Request::post(uri)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("user-agent", "hyper")
        .body(StreamBody::new(Box::pin(stream) as _))?;
    client.ready().await?;
    messages.send(Ok(framed(b"first"))).await?;
    Ok((messages, client.send_request(request).await?))
}

/// `count` echoed messages of `size` bytes, then a half-close: the body and the trailers must be as they should.
async fn echo(client: SendRequest<Body>, uri: String, size: usize, count: usize) -> Result<(), Failure> {
    let (messages, response) = call(client, &uri).await?;
    let sending = tokio::spawn(async move {
        for _ in 0..count {
            let _ = messages.send(Ok(framed(&vec![7; size]))).await;
        }
    });
    if response.status() != 200 {
        return Err(format!("status {}", response.status()).into());
    }
    let whole = response.into_body().collect().await?;
    sending.await?;
    let status = whole.trailers().and_then(|trailers| trailers.get("grpc-status").cloned());
    if status.as_ref().map(|status| status.as_bytes()) != Some(b"0") {
        return Err(format!("grpc-status {status:?}").into());
    }
    let expected = 10 + count * (size + 5);
    let got = whole.to_bytes();
    if got.len() != expected || !got.starts_with(b"\0\0\0\0\x05first") {
        return Err(format!("{} bytes instead of {expected}", got.len()).into());
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let uri = format!("http://{}{}", arguments[1], arguments[2]);
    let socket = TokioIo::new(tokio::net::TcpStream::connect(&arguments[1]).await?);
    let (client, connection) = Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .adaptive_window(true)
        .keep_alive_interval(Duration::from_millis(50))
        .keep_alive_while_idle(true)
        .handshake(socket)
        .await?;
    let connection = tokio::spawn(connection);
    let calls: Vec<_> = (0..50).map(|i| tokio::spawn(echo(client.clone(), uri.clone(), 100 * i, 5))).collect();
    for call in calls {
        call.await??;
    }
    for _ in 0..50 {
        let (_messages, response) = call(client.clone(), &uri).await?;
        drop(response); // hyper resets the stream
    }
    echo(client.clone(), uri, 3_000_000, 2).await?;
    tokio::time::sleep(Duration::from_millis(200)).await; // some pings while nothing runs
    drop(client);
    connection.await??;
    println!("fine");
    Ok(())
}
