//! The part of HTTP/1 (RFC 9112) that pages for supervisors need: one request without
//! a body, then the connection is closed.
//!
//! The client is not authenticated yet, so everything is bounded before it is parsed. The head has
//! at most [`HEAD_MAX`] bytes. A connection has [`PATIENCE`] for the head, and again for each write
//! of the answer.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

/// Bytes of a request's head.
pub(super) const HEAD_MAX: usize = 8 << 10;
/// Header lines of a request.
const LINES_MAX: usize = 64;
/// Time limit for receiving the head.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The parts of a request that matter here.
#[derive(Debug)]
pub(super) struct PageRequest {
    /// GET, HEAD, POST, PUT or DELETE. Pages outside of `/v1/` know the first two.
    pub method: &'static str,
    /// Path without the query.
    pub path: String,
    /// The query, encoded.
    pub query: String,
    /// Value of the only `Authorization` line.
    pub authorization: Option<String>,
    /// The request is a HEAD.
    is_head: bool,
    /// Minor version of HTTP/1: 0 or 1.
    minor: u8,
}

/// An answer.
#[derive(Debug)]
pub(super) struct PageAnswer {
    pub code: u16,
    pub headers: &'static [(&'static str, &'static str)],
    pub text: String,
}

/// Parses a head. `None`: it is incomplete. `Err`: the status code of a refusal.
pub(super) fn parse(head: &[u8]) -> Result<Option<PageRequest>, u16> {
    let mut lines = [httparse::EMPTY_HEADER; LINES_MAX];
    let mut request = httparse::Request::new(&mut lines);
    match request.parse(head) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(431),
        Err(_malformed) => return Err(400),
    }
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let method = match request.method {
        Some("GET") => "GET",
        Some("HEAD") => "HEAD",
        Some("POST") if path.starts_with("/v1/") => "POST",
        Some("PUT") if path.starts_with("/v1/") => "PUT",
        Some("DELETE") if path.starts_with("/v1/") => "DELETE",
        _ => return Err(405),
    };
    let mut said = request
        .headers
        .iter()
        .filter(|line| line.name.eq_ignore_ascii_case("authorization"));
    let authorization = match (said.next(), said.next()) {
        (Some(only), None) => std::str::from_utf8(only.value).ok().map(str::to_owned),
        _ => None,
    };
    Ok(Some(PageRequest {
        method,
        path: path.to_owned(),
        query: query.to_owned(),
        authorization,
        is_head: method == "HEAD",
        minor: request.version.unwrap_or(0),
    }))
}

pub(super) fn refuse(stream: &mut TcpStream, code: u16) -> std::io::Result<()> {
    let asked = PageRequest {
        method: "GET",
        path: String::new(),
        query: String::new(),
        authorization: None,
        is_head: false,
        minor: 1,
    };
    let answer = PageAnswer {
        code,
        headers: &[("Content-Type", "text/plain")],
        text: format!("{}\n", reason(code)),
    };
    write(stream, &asked, &answer)
}

/// Writes the answer; the caller then closes the connection.
pub(super) fn write(
    stream: &mut TcpStream,
    asked: &PageRequest,
    answer: &PageAnswer,
) -> std::io::Result<()> {
    let mut text = format!(
        "HTTP/1.{} {} {}\r\nContent-Length: {}\r\nConnection: close\r\n",
        asked.minor,
        answer.code,
        reason(answer.code),
        answer.text.len()
    );
    for (name, value) in answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    text.push_str("\r\n");
    if !asked.is_head {
        text.push_str(&answer.text);
    }
    // The gathering thread had set it to non-blocking.
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(text.as_bytes())
}

fn reason(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        409 => "Conflict",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_heads_of_get_and_head_requests_are_accepted() {
        let asked =
            parse(b"GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\naUthorization: Bearer b\r\n\r\n");
        let asked = asked.unwrap().unwrap();
        assert_eq!(
            (asked.path.as_str(), asked.authorization.as_deref()),
            ("/metrics", Some("Bearer b"))
        );
        assert!(parse(b"GET / HTTP/1.1\r\nHost:").unwrap().is_none());
        for (text, code) in [
            ("POST / HTTP/1.1\r\n\r\n", 405),
            ("GET / HTTP/1.1\r\nA: b\r\n Authorization: c\r\n\r\n", 400),
            ("\u{1}\u{2}\u{3} HTTP\r\n\r\n", 400),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err(), code, "{text}");
        }
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(LINES_MAX + 1));
        assert_eq!(parse(many.as_bytes()).unwrap_err(), 431);
        let twice = b"GET / HTTP/1.1\r\nAuthorization: a\r\nAuthorization: b\r\n\r\n";
        assert!(parse(twice).unwrap().unwrap().authorization.is_none());
    }
}
