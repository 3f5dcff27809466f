//! Reads the answers of a server, for the clients of both bench packages.

use tokio::{io::AsyncReadExt, net::TcpStream};

use crate::Outcome;

/// Reads one answer into the buffer and returns its length.
pub async fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> Outcome<usize> {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        if read == 0 {
            return Err("the server closed the connection, or its answer is too long".into());
        }
        filled += read;
        if let Some(length) = whole_length(&buffer[..filled])
            && length <= filled
        {
            return Ok(filled);
        }
    }
}

pub fn contains(bytes: &[u8], part: &[u8]) -> bool {
    position(bytes, part).is_some()
}

/// Returns the length of head and body together, once the head is whole.
fn whole_length(bytes: &[u8]) -> Option<usize> {
    let head = position(bytes, b"\r\n\r\n")? + 4;
    let field = position(&bytes[..head], b"content-length: ")? + 16;
    let digits = bytes[field..head].iter().take_while(|byte| byte.is_ascii_digit());
    Some(head + digits.fold(0, |sum, digit| sum * 10 + usize::from(digit - b'0')))
}

fn position(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}
