//! Bytes that mean something in a text, found 64 bytes at a look, and the runs of plain bytes between them.
//!
//! A string of JSON inside JSON has an escape every few bytes. There a search that is made for long runs spends its time
//! on setting up, and a loop that ends at each byte it looks for on guessing wrong where that is. So marks are collected
//! for a whole block first, by the arithmetic of "Bit Twiddling Hacks" (S. E. Anderson, "Determine if a word has a byte
//! equal to n", "… less than n") in its exact form.

use memchr::memchr2;

const WORD: usize = 8;
const BLOCK: usize = 64;
const ONES: u64 = u64::from_ne_bytes([0x01; WORD]);
const HIGHS: u64 = u64::from_ne_bytes([0x80; WORD]);
/// Words of a string looked at before a search for its end pays off: most strings end within them.
const NEAR_WORDS: usize = 4;
/// Runs up to this length are copied in one piece of this length, of which the rest is cut off again.
const SHORT_RUN: usize = 16;

/// Where a string ends, and what was seen on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StringEnd {
    /// Of its closing quotation mark.
    pub at: usize,
    pub has_escapes: bool,
    /// `false` is sure; long strings are not looked through for it.
    pub may_have_colon: bool,
}

/// The end of the string whose first byte, behind its opening quotation mark, is at `from`.
pub(super) fn string_end(bytes: &[u8], from: usize) -> Option<StringEnd> {
    let (mut at, mut colons) = (from, 0);
    for _ in 0..NEAR_WORDS {
        let Some(word) = bytes.get(at..)?.first_chunk() else { break };
        let word = u64::from_le_bytes(*word);
        let found = (equal_from_first(word, b'"') | equal_from_first(word, b'\\')).trailing_zeros() as usize / 8;
        if found < WORD {
            colons |= equal_from_first(word, b':') & ((1 << (8 * found)) - 1);
            return string_end_from(bytes, at + found, colons != 0);
        }
        colons |= equal_from_first(word, b':');
        at += WORD;
    }
    let first = at + memchr2(b'"', b'\\', bytes.get(at..)?)?;
    string_end_from(bytes, first, true)
}

/// The same with the place of the first quotation mark or backslash in it.
fn string_end_from(bytes: &[u8], first: usize, may_have_colon: bool) -> Option<StringEnd> {
    if bytes[first] == b'"' {
        return Some(StringEnd { at: first, has_escapes: false, may_have_colon });
    }
    let (mut end, mut escaped) = (None, usize::MAX);
    visit(
        &bytes[first..],
        |word| equal(word, b'"') | equal(word, b'\\'),
        |step| {
            let at = first + step;
            match bytes[at] {
                // Whatever is escaped, it ends nothing.
                _ if at == escaped => {}
                b'"' => {
                    end = Some(at);
                    return None;
                }
                _ => escaped = at + 1,
            }
            Some(())
        },
    );
    end.map(|at| StringEnd { at, has_escapes: true, may_have_colon })
}

/// Tells the places of all colons.
pub(super) fn each_colon(bytes: &[u8], mut tell: impl FnMut(usize)) {
    visit(
        bytes,
        |word| equal(word, b':'),
        |at| {
            tell(at);
            Some(())
        },
    );
}

/// Appends `bytes` but for what starts with a backslash: `escape` is told where it is, appends what it stands for and
/// says where it ends; `None` from there ends it all.
pub(super) fn copy_unescaped(
    bytes: &[u8],
    out: &mut Vec<u8>,
    mut escape: impl FnMut(usize, &mut Vec<u8>) -> Option<usize>,
) -> Option<()> {
    let mut copied = 0;
    visit(
        bytes,
        |word| equal(word, b'\\'),
        |at| {
            if at >= copied {
                copy_run(bytes, copied, at, out);
                copied = escape(at, out)?;
            }
            Some(())
        },
    )?;
    out.extend_from_slice(bytes.get(copied..)?);
    Some(())
}

/// Appends `bytes` but for those that a JSON string must escape (RFC 8259, section 7): control characters, the
/// quotation mark and the backslash. `escape` appends what stands for them.
pub(super) fn copy_escaped(bytes: &[u8], out: &mut Vec<u8>, escape: impl Fn(u8, &mut Vec<u8>)) {
    let mut copied = 0;
    visit(
        bytes,
        |word| below_space(word) | equal(word, b'"') | equal(word, b'\\'),
        |at| {
            copy_run(bytes, copied, at, out);
            escape(bytes[at], out);
            copied = at + 1;
            Some(())
        },
    );
    out.extend_from_slice(&bytes[copied..]);
}

fn copy_run(bytes: &[u8], from: usize, to: usize, out: &mut Vec<u8>) {
    match bytes[from..].first_chunk::<SHORT_RUN>() {
        Some(short) if to - from <= SHORT_RUN => {
            out.extend_from_slice(short);
            out.truncate(out.len() - (SHORT_RUN - (to - from)));
        }
        _ => out.extend_from_slice(&bytes[from..to]),
    }
}

/// Tells the places of the bytes whose highest bit `marks` sets in a word of eight, until it is answered `None`.
fn visit(bytes: &[u8], marks: impl Fn(u64) -> u64, mut tell: impl FnMut(usize) -> Option<()>) -> Option<()> {
    let mut block_at = 0;
    while block_at < bytes.len() {
        let mut found = match bytes[block_at..].first_chunk() {
            Some(block) => found(block, &marks),
            None => {
                let rest = &bytes[block_at..];
                let mut block = [0; BLOCK];
                block[..rest.len()].copy_from_slice(rest);
                found(&block, &marks) & ((1 << rest.len()) - 1)
            }
        };
        while found != 0 {
            tell(block_at + found.trailing_zeros() as usize)?;
            found &= found - 1;
        }
        block_at += BLOCK;
    }
    Some(())
}

/// A bit for each marked byte of a block, the lowest for the first.
fn found(block: &[u8; BLOCK], marks: impl Fn(u64) -> u64) -> u64 {
    /// Gathers the lowest bits of eight bytes in the highest byte, in their order.
    const GATHER: u64 = 0x0102_0408_1020_4080;
    let (words, _) = block.as_chunks::<WORD>();
    words.iter().enumerate().fold(0, |found, (at, word)| {
        let marks = marks(u64::from_le_bytes(*word)) >> 7;
        found | (marks.wrapping_mul(GATHER) >> 56) << (WORD * at)
    })
}

/// Marks the bytes that are `byte`, by their highest bits.
fn equal(word: u64, byte: u8) -> u64 {
    let different = word ^ (ONES * u64::from(byte));
    // A sum of seven bits reaches the eighth unless all are zero, and never the next byte.
    !(((different & !HIGHS) + !HIGHS) | different) & HIGHS
}

/// The same for less work: the first mark is right, those behind it may be wrong.
fn equal_from_first(word: u64, byte: u8) -> u64 {
    let different = word ^ (ONES * u64::from(byte));
    different.wrapping_sub(ONES) & !different & HIGHS
}

/// Marks the bytes less than a space, which are the control characters.
fn below_space(word: u64) -> u64 {
    !((word & !HIGHS) + ONES * 0x60) & !word & HIGHS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes on both sides of each bound, in every place, with every kind of neighbour, around one word and one block.
    #[test]
    fn finds_what_a_look_at_each_byte_finds() {
        const BYTES: [u8; 16] =
            [0, 1, 0x1f, b' ', b'!', b'"', b'#', b'9', b':', b';', b'[', b'\\', b']', 0x7f, 0x80, 0xff];
        for length in [1, 7, 8, 9, 17, 33, 64, 65] {
            for filler in [b'x', b'!', b'"', b'\\', b':', 0x80] {
                for (place, byte) in (0..length).flat_map(|place| BYTES.map(|byte| (place, byte))) {
                    let mut bytes = vec![filler; length];
                    bytes[place] = byte;
                    check(&bytes);
                }
            }
        }
        check(&[]);
    }

    #[track_caller]
    fn check(bytes: &[u8]) {
        let all = |is_meant: fn(u8) -> bool| (0..bytes.len()).filter(move |at| is_meant(bytes[*at]));
        let mut colons = Vec::new();
        each_colon(bytes, |at| colons.push(at));
        assert!(colons.into_iter().eq(all(|byte| byte == b':')), "{bytes:?}");
        assert_eq!(string_end(bytes, 0).map(|end| end.at), end_by_byte(bytes), "{bytes:?}");
        if let Some(StringEnd { at, has_escapes, may_have_colon }) = string_end(bytes, 0) {
            assert_eq!(has_escapes, bytes[..at].contains(&b'\\'), "{bytes:?}");
            assert!(has_escapes || may_have_colon || !bytes[..at].contains(&b':'), "{bytes:?}");
        }
        let expected: Vec<u8> = bytes.iter().flat_map(|byte| replaced(*byte, *byte == b'\\')).collect();
        let mut out = Vec::new();
        let copied = copy_unescaped(bytes, &mut out, |at, out| {
            out.extend(replaced(bytes[at], true));
            Some(at + 1)
        });
        assert_eq!((copied, &out), (Some(()), &expected), "{bytes:?}");
        let must_escape = |byte: u8| byte < b' ' || byte == b'"' || byte == b'\\';
        let expected: Vec<u8> = bytes.iter().flat_map(|byte| replaced(*byte, must_escape(*byte))).collect();
        let mut out = Vec::new();
        copy_escaped(bytes, &mut out, |byte, out| out.extend(replaced(byte, true)));
        assert_eq!(out, expected, "{bytes:?}");
    }

    fn replaced(byte: u8, is_marked: bool) -> Vec<u8> {
        if is_marked { vec![b'<', byte, b'>'] } else { vec![byte] }
    }

    fn end_by_byte(bytes: &[u8]) -> Option<usize> {
        let mut is_escaped = false;
        bytes.iter().position(|byte| {
            let ends = *byte == b'"' && !is_escaped;
            is_escaped = *byte == b'\\' && !is_escaped;
            ends
        })
    }
}
