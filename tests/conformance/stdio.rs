//! The server over stdio, as it is behind the broker.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use rmcp::ServiceExt as _;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, ReadBuf, Stdin};
use tokio_util::sync::CancellationToken;

use crate::news::News;
use crate::{Manner, Server};

/// Serves until stdin ends.
pub async fn serve(news: Arc<News>, only: Option<Manner>) -> anyhow::Result<()> {
    let gone = CancellationToken::new();
    let input = Input { stdin: tokio::io::stdin(), gone: gone.clone() };
    let server = Server { only, ..Server::new(news, gone) };
    match server.serve((input, tokio::io::stdout())).await {
        Ok(running) => drop(running.waiting().await?),
        // Somebody who only wanted to know which revisions there are, or nothing at all.
        Err(ServerInitializeError::ConnectionClosed(_)) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Stdin that tells when it has ended: `rmcp` alone would give a listener, or a question that nobody will answer any
/// more, five seconds to come to its end.
struct Input {
    stdin: Stdin,
    gone: CancellationToken,
}

impl AsyncRead for Input {
    fn poll_read(mut self: Pin<&mut Self>, task: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stdin).poll_read(task, buffer));
        if read.is_err() || buffer.filled().len() == before {
            self.gone.cancel();
        }
        Poll::Ready(read)
    }
}
