//! One request over HTTP/1.0, for pages that answer with JSON and close the connection.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Time for the connection, and for the whole answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Bytes of an answer.
const ANSWER_MAX: usize = 16 << 20;

/// Header lines of an answer.
const LINES_MAX: usize = 64;

/// Sends a request; returns status code and body.
pub(super) fn ask(
    address: SocketAddr,
    token: Option<&str>,
    method: &str,
    target: &str,
) -> Result<(u16, Vec<u8>), String> {
    let answer = exchange(address, token, method, target).map_err(|error| error.to_string())?;
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut response = httparse::Response::new(&mut lines);
    match response.parse(&answer) {
        Ok(httparse::Status::Complete(head)) => {
            let body = answer.get(head..).unwrap_or_default().to_vec();
            let length = response.headers.iter();
            let length = length
                .filter(|line| line.name.eq_ignore_ascii_case("content-length"))
                .find_map(|line| std::str::from_utf8(line.value).ok()?.trim().parse().ok());
            // The other side ended in the middle.
            if length.is_some_and(|length: usize| length != body.len()) {
                return Err("the answer is incomplete".to_owned());
            }
            Ok((response.code.unwrap_or_default(), body))
        }
        Ok(httparse::Status::Partial) => Err("the answer is incomplete".to_owned()),
        Err(error) => Err(format!("the answer is not HTTP: {error}")),
    }
}

fn exchange(
    address: SocketAddr,
    token: Option<&str>,
    method: &str,
    target: &str,
) -> std::io::Result<Vec<u8>> {
    let until = Instant::now() + PATIENCE;
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let authorization =
        token.map_or_else(String::new, |token| format!("Authorization: {token}\r\n"));
    let head = format!("{method} {target} HTTP/1.0\r\nHost: {address}\r\n{authorization}\r\n");
    stream.write_all(head.as_bytes())?;
    let (mut answer, mut some) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut some) {
            Ok(0) => return Ok(answer),
            Ok(count) => answer.extend_from_slice(&some[..count]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                return Err(std::io::ErrorKind::TimedOut.into());
            }
            Err(error) => return Err(error),
        }
        if answer.len() > ANSWER_MAX {
            return Err(std::io::Error::other("the answer is too long"));
        }
    }
}

/// Encodes a parameter: all but letters, digits and a few signs as `%xx` (RFC 3986).
pub(super) fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => out.push(char::from(byte)),
            b'/' | b'-' | b'_' | b'.' | b'~' | b',' | b':' => out.push(char::from(byte)),
            byte => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn parameters_are_encoded() {
        assert_eq!(percent_encoded("/a b&c=%\u{e9}"), "/a%20b%26c%3d%25%c3%a9");
    }

    /// The outcome where the other side answers with `text`.
    fn answered(text: &'static str) -> Result<(u16, Vec<u8>), String> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut head = [0; 1024];
            let count = stream.read(&mut head).unwrap();
            stream.write_all(text.as_bytes()).unwrap();
            String::from_utf8_lossy(&head[..count]).into_owned()
        });
        let outcome = ask(address, Some("Bearer 0123456789abcdef"), "GET", "/v1/zones");
        let head = server.join().unwrap();
        assert!(head.contains("Authorization: Bearer 0123456789abcdef\r\n"));
        outcome
    }

    #[test]
    fn an_answer_is_taken_whole_or_not_at_all() {
        let whole = answered("HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}");
        assert_eq!(whole, Ok((200, b"{}".to_vec())));
        for bad in [
            "HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n{}",
            "HTTP/1.0 200 OK\r\nConte",
            "SSH-2.0-x\r\n",
            "",
        ] {
            assert!(answered(bad).is_err(), "{bad}");
        }
    }
}
