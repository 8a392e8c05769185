//! Stream with a bound on its bytes: heads of HTTP have no length field, and the reader buffers all
//! data until the head is complete.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Stream with a bound on the bytes that are read.
#[derive(Debug)]
pub(super) struct Bounded<S> {
    stream: S,
    left: Option<usize>,
}

impl<S> Bounded<S> {
    /// Creates a stream of which at most `most` bytes are read, until the bound is lifted.
    pub(super) fn new(stream: S, most: usize) -> Self {
        Self {
            stream,
            left: Some(most),
        }
    }

    /// Removes the bound, since the following data has its own.
    pub(super) fn lift(&mut self) {
        self.left = None;
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Bounded<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(left) = self.left else {
            return Pin::new(&mut self.stream).poll_read(cx, into);
        };
        if left == 0 {
            return Poll::Ready(Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the HTTP header is too long",
            )));
        }
        let most = into.remaining().min(left);
        let mut part = ReadBuf::new(into.initialize_unfilled_to(most));
        ready!(Pin::new(&mut self.stream).poll_read(cx, &mut part))?;
        let read = part.filled().len();
        into.advance(read);
        self.left = Some(left - read);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Bounded<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    #[tokio::test]
    async fn reads_up_to_the_bound_and_on_when_it_is_lifted() {
        let text: &[u8] = b"a head and what follows";
        let mut bounded = Bounded::new(tokio::io::join(text, tokio::io::sink()), 6);
        let mut head = [0; 6];
        bounded.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"a head");
        let error = bounded.read(&mut [0; 1]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        bounded.lift();
        let mut rest = Vec::new();
        bounded.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b" and what follows");
    }
}
