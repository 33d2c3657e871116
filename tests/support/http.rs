//! HTTP/1.1 over a plain socket: what is sent and what comes back, byte for byte.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long an exchange may take unless the test says otherwise.
const LIMIT: Duration = Duration::from_secs(30);

/// A request; nothing in it is checked, so that it can be wrong.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Option<Vec<u8>>,
}

impl Request {
    pub fn new(method: &str, target: &str) -> Self {
        Self { method: method.to_owned(), target: target.to_owned(), headers: Vec::new(), body: None }
    }

    pub fn get(target: &str) -> Self {
        Self::new("GET", target)
    }

    /// A POST of JSON with the `Accept` that MCP asks of clients.
    pub fn post(target: &str, body: impl Into<Vec<u8>>) -> Self {
        Self { body: Some(body.into()), ..Self::new("POST", target) }
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
    }

    /// Sets `name`, instead of what it was before.
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self = self.without(name);
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub fn without(mut self, name: &str) -> Self {
        self.headers.retain(|(known, _)| !known.eq_ignore_ascii_case(name));
        self
    }

    fn has(&self, name: &str) -> bool {
        self.headers.iter().any(|(known, _)| known.eq_ignore_ascii_case(name))
    }

    fn bytes(&self, host: SocketAddr) -> Vec<u8> {
        let mut text = format!("{} {} HTTP/1.1\r\n", self.method, self.target);
        if !self.has("host") {
            text.push_str(&format!("host: {host}\r\n"));
        }
        for (name, value) in &self.headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = self.body.as_ref().filter(|_| !self.has("content-length")) {
            text.push_str(&format!("content-length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        let mut bytes = text.into_bytes();
        bytes.extend(self.body.iter().flatten());
        bytes
    }
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Response {
    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.headers, name)
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("the broker answers in UTF-8")
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {} {:?}", self.status, self.text()))
    }

    /// The JSON-RPC messages of the body, each as it was spelled: the body itself, or the data of its events.
    pub fn messages(&self) -> Vec<String> {
        if !self.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) {
            return Vec::from([self.text().to_owned()]);
        }
        let mut events = Events { lines: self.body.as_slice() };
        std::iter::from_fn(|| events.next().expect("a body in memory can be read"))
            .filter_map(|frame| match frame {
                Frame::Event { data, .. } => Some(data),
                Frame::Comment(_) => None,
            })
            .filter(|data| !data.is_empty())
            .collect()
    }
}

/// Where a broker listens. Each exchange is a connection of its own.
#[derive(Clone, Copy, Debug)]
pub struct Http(pub SocketAddr);

impl Http {
    /// The whole answer. Panics if the connection breaks or `LIMIT` passes.
    #[track_caller]
    pub fn send(&self, request: &Request) -> Response {
        match self.try_send(request) {
            Ok(response) => response,
            Err(error) => panic!("{} {}: {error}", request.method, request.target),
        }
    }

    pub fn try_send(&self, request: &Request) -> io::Result<Response> {
        self.open_bytes(&request.bytes(self.0))?.finish()
    }

    /// Sends `bytes` as they are.
    pub fn send_bytes(&self, bytes: &[u8]) -> io::Result<Response> {
        self.open_bytes(bytes)?.finish()
    }

    /// The answer's head; the body is read as it comes, or given up by a drop.
    #[track_caller]
    pub fn open(&self, request: &Request) -> Exchange {
        match self.open_bytes(&request.bytes(self.0)) {
            Ok(exchange) => exchange,
            Err(error) => panic!("{} {}: {error}", request.method, request.target),
        }
    }

    /// Sends the request and waits for its whole answer on another thread.
    pub fn send_aside(&self, request: &Request) -> std::thread::JoinHandle<Response> {
        let (http, request) = (*self, request.clone());
        std::thread::spawn(move || http.send(&request))
    }

    /// Sends the request and reads nothing: a client that can go away before it is answered.
    pub fn start(&self, request: &Request) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.0)?;
        stream.write_all(&request.bytes(self.0))?;
        Ok(stream)
    }

    fn open_bytes(&self, bytes: &[u8]) -> io::Result<Exchange> {
        let stream = TcpStream::connect(self.0)?;
        let mut sender = stream.try_clone()?;
        let mut reader = BufReader::new(Timed { stream, end: Instant::now() + LIMIT });
        // An early refusal closes the connection while a large body is still being sent; its answer counts.
        let sent = sender.write_all(bytes);
        let head = Head::read(&mut reader).map_err(|error| sent.err().unwrap_or(error))?;
        let framing = head.framing();
        Ok(Exchange { head, body: Body { reader, framing } })
    }
}

/// One connection for one exchange after the other.
#[derive(Debug)]
pub struct Connection {
    http: Http,
    sender: TcpStream,
    reader: Option<BufReader<Timed>>,
}

impl Connection {
    pub fn open(http: Http) -> io::Result<Self> {
        let stream = TcpStream::connect(http.0)?;
        stream.set_nodelay(true)?;
        let sender = stream.try_clone()?;
        Ok(Self { http, sender, reader: Some(BufReader::new(Timed { stream, end: Instant::now() })) })
    }

    /// The whole answer. After an error the connection cannot be used any more.
    pub fn send(&mut self, request: &Request) -> io::Result<Response> {
        let mut reader = self.reader.take().ok_or(io::ErrorKind::NotConnected)?;
        reader.get_mut().end = Instant::now() + LIMIT;
        self.sender.write_all(&request.bytes(self.http.0))?;
        let head = Head::read(&mut reader)?;
        let mut body = Body { framing: head.framing(), reader };
        let mut bytes = Vec::new();
        body.read_to_end(&mut bytes)?;
        self.reader = Some(body.reader);
        Ok(Response { status: head.status, headers: head.headers, body: bytes })
    }
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Exchange {
    head: Head,
    body: Body,
}

impl Exchange {
    pub fn status(&self) -> u16 {
        self.head.status
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        find(&self.head.headers, name)
    }

    pub fn finish(mut self) -> io::Result<Response> {
        let mut body = Vec::new();
        self.body.read_to_end(&mut body)?;
        Ok(Response { status: self.head.status, headers: self.head.headers, body })
    }

    /// The body as server-sent events, read until `limit` has passed.
    pub fn events(self, limit: Duration) -> Events<BufReader<Body>> {
        let mut body = self.body;
        body.reader.get_mut().end = Instant::now() + limit;
        Events { lines: BufReader::new(body) }
    }
}

/// One part of an event stream.
#[derive(Clone, Debug, PartialEq)]
pub enum Frame {
    Comment(String),
    Event { name: Option<String>, id: Option<String>, data: String },
}

/// The parts of an event stream, in order.
#[derive(Debug)]
pub struct Events<R> {
    lines: R,
}

impl<R: BufRead> Events<R> {
    /// The next part; `None` at the stream's end; `TimedOut` or `WouldBlock` when the limit has passed.
    pub fn next(&mut self) -> io::Result<Option<Frame>> {
        let (mut name, mut id, mut data) = (None, None, Vec::new());
        loop {
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                return Ok(None);
            }
            let line = line.trim_end_matches(['\n', '\r']);
            match line
                .split_once(':')
                .map_or((line, ""), |(field, value)| (field, value.strip_prefix(' ').unwrap_or(value)))
            {
                ("", "") if line.is_empty() && (name.is_some() || id.is_some() || !data.is_empty()) => {
                    return Ok(Some(Frame::Event { name, id, data: data.join("\n") }));
                }
                ("", _) if line.is_empty() => {}
                ("", comment) => return Ok(Some(Frame::Comment(comment.to_owned()))),
                ("event", value) => name = Some(value.to_owned()),
                ("id", value) => id = Some(value.to_owned()),
                ("data", value) => data.push(value.to_owned()),
                _ => {}
            }
        }
    }

    /// The data of the next event as JSON, comments skipped. Panics when there is none in time.
    #[track_caller]
    pub fn message(&mut self) -> Value {
        let data = self.data();
        serde_json::from_str(&data).unwrap_or_else(|error| panic!("event is not JSON ({error}): {data}"))
    }

    /// The data of the next event as it was spelled, comments skipped. Panics when there is none in time.
    #[track_caller]
    pub fn data(&mut self) -> String {
        match self.data_or_end() {
            Ok(Some(data)) => data,
            Ok(None) => panic!("the stream ended before the message"),
            Err(error) => panic!("no message in time: {error}"),
        }
    }

    /// The same; `None` at the stream's end.
    pub fn data_or_end(&mut self) -> io::Result<Option<String>> {
        loop {
            match self.next()? {
                Some(Frame::Event { data, .. }) if !data.is_empty() => return Ok(Some(data)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }
}

#[derive(Debug)]
struct Head {
    status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| io::Error::other(format!("not a status line: {line:?}")))?;
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line)?;
            match line.trim_end().split_once(':') {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None => return Ok(Self { status, headers }),
            }
        }
    }

    fn framing(&self) -> Framing {
        if find(&self.headers, "transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            return Framing::Chunked { left: 0 };
        }
        match find(&self.headers, "content-length").and_then(|length| length.parse().ok()) {
            Some(left) => Framing::Sized { left },
            None if matches!(self.status, 100..200 | 204 | 304) => Framing::Sized { left: 0 },
            None => Framing::ToTheEnd,
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Framing {
    Sized {
        left: u64,
    },
    /// `left` of the chunk being read.
    Chunked {
        left: u64,
    },
    ToTheEnd,
    Finished,
}

/// A body without its framing.
#[derive(Debug)]
pub struct Body {
    reader: BufReader<Timed>,
    framing: Framing,
}

impl Body {
    /// The size of the next chunk; after the last one, 0.
    fn next_chunk(&mut self) -> io::Result<u64> {
        let size = self.line()?;
        let size = u64::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .map_err(|_| io::Error::other(format!("not a chunk size: {size:?}")))?;
        if size == 0 {
            while !self.line()?.is_empty() {}
        }
        Ok(size)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.reader.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn take(&mut self, left: u64, buffer: &mut [u8]) -> io::Result<u64> {
        let most = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        match self.reader.read(&mut buffer[..most])? {
            0 if most > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
            read => Ok(read as u64),
        }
    }
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match self.framing {
            Framing::Finished | Framing::Sized { left: 0 } => 0,
            Framing::ToTheEnd => self.reader.read(buffer)? as u64,
            Framing::Sized { left } => {
                let read = self.take(left, buffer)?;
                self.framing = Framing::Sized { left: left - read };
                read
            }
            Framing::Chunked { left: 0 } => match self.next_chunk()? {
                0 => {
                    self.framing = Framing::Finished;
                    0
                }
                left => {
                    self.framing = Framing::Chunked { left };
                    return self.read(buffer);
                }
            },
            Framing::Chunked { left } => {
                let read = self.take(left, buffer)?;
                if left == read {
                    self.line()?;
                }
                self.framing = Framing::Chunked { left: left - read };
                read
            }
        };
        usize::try_from(read).map_err(io::Error::other)
    }
}

/// A socket that is read until one moment; closed on drop in both directions.
#[derive(Debug)]
struct Timed {
    stream: TcpStream,
    end: Instant,
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buffer)
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        self.stream.shutdown(Shutdown::Both).ok();
    }
}

fn find<'a>(headers: &'a [(String, String)], name: &str) -> Option<&'a str> {
    headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
}
