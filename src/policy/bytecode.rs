//! Which global names a compiled chunk reads and writes, on which line: also in functions that have not run.
//!
//! The compiler of Luau is the only one who knows for certain which name is a local, a parameter or a type, so its
//! output is read instead of the source: the serialized form of version 9 (`VM/src/lvmload.cpp` and
//! `Common/include/Luau/Bytecode.h` of Luau 0.740), as far as it is needed. A form that is not known yields nothing: a
//! check that misses is better than one that invents. The version of mlua is in the lock file, and the tests below fail
//! when its Luau writes another form.

use mlua::chunk::Compiler;

/// Versions of the form whose instructions and constants are known here.
const VERSIONS: std::ops::RangeInclusive<u8> = 6..=9;

const GETGLOBAL: u8 = 7;
const SETGLOBAL: u8 = 8;
const GETIMPORT: u8 = 12;

/// Instructions that are followed by a word that is none: those above, table accesses by name, comparing jumps, and some
/// that build tables, loop or call library functions.
const TWO_WORDS: [u8; 28] = [
    GETGLOBAL, SETGLOBAL, GETIMPORT, 15, 16, 20, 27, 28, 29, 30, 31, 32, 53, 55, 58, 60, 66, 74, 75, 77, 78, 79, 80,
    83, 84, 85, 87, 88,
];

/// What a chunk does with global names.
#[derive(Debug, Default)]
pub(super) struct Globals {
    pub reads: Vec<Read>,
    pub writes: Vec<String>,
}

/// A global that is read, and the fields of it that are known at compile time: `broker`, `deny`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    pub path: Vec<String>,
    pub line: usize,
}

/// What machines run, and what names are read from. Level 1, which is the default, writes `a.b` as one import and keeps
/// functions as they are; level 2 would inline them.
pub(super) fn compile(source: &[u8]) -> mlua::Result<Vec<u8>> {
    Compiler::new().set_optimization_level(1).set_debug_level(1).compile(source)
}

pub(super) fn globals(code: &[u8]) -> Globals {
    Reader { bytes: code, at: 0 }.chunk().unwrap_or_default()
}

/// `None` below means: the bytes end early, or are not of a known form.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

enum Constant {
    Text(usize),
    Other,
}

impl Reader<'_> {
    fn chunk(mut self) -> Option<Globals> {
        VERSIONS.contains(&self.byte()?).then_some(())?;
        let type_version = self.byte()?;
        let strings: Vec<String> = (0..self.count()?)
            .map(|_| {
                let length = self.count()?;
                self.skip(length).map(|bytes| String::from_utf8_lossy(bytes).into_owned())
            })
            .collect::<Option<_>>()?;
        if type_version == 3 {
            while self.byte()? != 0 {
                self.count()?;
            }
        }
        let mut globals = Globals::default();
        for _ in 0..self.count()? {
            self.function(&strings, &mut globals)?;
        }
        globals.reads.sort_by_key(|read| read.line);
        Some(globals)
    }

    fn function(&mut self, strings: &[String], globals: &mut Globals) -> Option<()> {
        // Stack size, parameters, upvalues, whether it takes more, flags.
        self.skip(5)?;
        let types = self.count()?;
        self.skip(types)?;
        let code: Vec<u32> = (0..self.count()?).map(|_| self.word()).collect::<Option<_>>()?;
        let constants: Vec<Constant> = (0..self.count()?).map(|_| self.constant()).collect::<Option<_>>()?;
        for _ in 0..self.count()? {
            self.count()?;
        }
        // The line that it is defined on, and its name.
        self.count()?;
        self.count()?;
        let lines = self.lines(code.len())?;
        self.skip_local_names()?;
        let text = |index: u32| match constants.get(index as usize)? {
            Constant::Text(index) => strings.get(index.checked_sub(1)?).cloned(),
            Constant::Other => None,
        };
        let mut at = 0;
        while let Some(word) = code.get(at) {
            let operation = (word & 0xff) as u8;
            let line = lines.get(at).copied().unwrap_or_default();
            let more = code.get(at + 1).copied();
            match operation {
                GETGLOBAL => globals.reads.push(Read { path: vec![text(more?)?], line }),
                SETGLOBAL => globals.writes.push(text(more?)?),
                GETIMPORT => globals.reads.push(Read { path: import(more?, text)?, line }),
                _ => {}
            }
            at += if TWO_WORDS.contains(&operation) { 2 } else { 1 };
        }
        Some(())
    }

    fn constant(&mut self) -> Option<Constant> {
        match self.byte()? {
            0 => {}
            1 => self.skip(1).map(drop)?,
            2 => self.skip(8).map(drop)?,
            3 => return Some(Constant::Text(self.count()?)),
            4 => self.skip(4).map(drop)?,
            5 => (0..self.count()?).try_for_each(|_| self.count().map(drop))?,
            6 => self.count().map(drop)?,
            7 => self.skip(16).map(drop)?,
            8 => (0..self.count()?).try_for_each(|_| {
                self.count()?;
                self.skip(4).map(drop)
            })?,
            9 => {
                self.byte()?;
                self.count()?;
            }
            _ => return None,
        }
        Some(Constant::Other)
    }

    /// The line of each instruction: a difference to the line at the start of its stretch.
    fn lines(&mut self, instructions: usize) -> Option<Vec<usize>> {
        if self.byte()? == 0 {
            return Some(Vec::new());
        }
        let stretch = self.byte()?;
        let mut last = 0_u8;
        let mut offsets = Vec::with_capacity(instructions);
        for _ in 0..instructions {
            last = last.wrapping_add(self.byte()?);
            offsets.push(last);
        }
        let mut start = 0_i32;
        let mut starts = Vec::new();
        for _ in 0..(instructions.checked_sub(1)? >> stretch) + 1 {
            start = start.wrapping_add(self.word()?.cast_signed());
            starts.push(start);
        }
        let line = |(at, offset): (usize, &u8)| {
            let start = starts.get(at >> stretch).copied().unwrap_or_default();
            usize::try_from(start).unwrap_or_default() + usize::from(*offset)
        };
        Some(offsets.iter().enumerate().map(line).collect())
    }

    /// Written at level 2 of debugging only.
    fn skip_local_names(&mut self) -> Option<()> {
        if self.byte()? == 0 {
            return Some(());
        }
        for _ in 0..self.count()? {
            self.count()?;
            self.count()?;
            self.count()?;
            self.byte()?;
        }
        (0..self.count()?).try_for_each(|_| self.count().map(drop))
    }

    fn byte(&mut self) -> Option<u8> {
        self.skip(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u32> {
        self.skip(4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes)
    }

    /// Seven bits a byte, the lowest first.
    fn count(&mut self) -> Option<usize> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return usize::try_from(value).ok();
            }
        }
        None
    }

    fn skip(&mut self, length: usize) -> Option<&[u8]> {
        let found = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(found)
    }
}

/// Up to three names packed into one word: their number in the highest two bits, then ten bits each.
fn import(word: u32, text: impl Fn(u32) -> Option<String>) -> Option<Vec<String>> {
    (0..word >> 30).map(|at| text(word >> (20 - 10 * at) & 0x3ff)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(source: &str, expected: &[&str]) {
        let found = globals(&compile(source.as_bytes()).unwrap());
        let found: Vec<String> =
            found.reads.iter().map(|read| format!("{}:{}", read.line, read.path.join("."))).collect();
        assert_eq!(found, expected, "{source}");
    }

    #[test]
    fn globals_are_found_in_functions_that_never_run() {
        check(
            "return broker.backend { f = function(call)\n  return deny(call.url)\nend }",
            &["1:broker.backend", "2:deny"],
        );
        check(
            "local function f()\n\n\n  return function() return a.b.c.d + x.y end\nend\nreturn f",
            &["4:a.b.c", "4:x.y"],
        );
        check("if string.find(a, 'x') then\n b()\nelse\n c()\nend", &["1:string.find", "1:a", "2:b", "4:c"]);
    }

    #[test]
    fn locals_parameters_fields_and_types_are_no_globals() {
        check(
            "type Url = { host: string }\nlocal x: number, t = 1, { y = 2, ['z'] = 3 }\n\
             local function f(a: Url, ...: string): boolean\n  for i = 1, 2 do t[i] = i end\n  for k, v in t do t[k] = v end\n\
             \x20 local s = `{x} {a.host}`\n  return s == a.host and t.y == t['z'] and x :: any\nend\nreturn { f = f, g = t.q }",
            &[],
        );
    }

    #[test]
    fn what_a_file_defines_is_told() {
        let found = globals(&compile(b"function helper() return 1 end\ncount = helper()").unwrap());
        assert_eq!(found.writes, ["helper", "count"]);
    }

    #[test]
    fn lines_hold_in_long_functions() {
        let mut source = String::from("local t = {}\nlocal function f()\n");
        (0..3000).for_each(|n| source += &format!("  t['k{n}'] = {n}.5\n"));
        source += "  return missing_name\nend\nreturn f";
        check(&source, &["3003:missing_name"]);
    }

    #[test]
    fn every_kind_of_constant_and_instruction_is_passed_over() {
        check(
            "local a = { x = 1, y = 'z', w = nil, v = true }\nlocal b = { 1, 2, 3, 4.5, -1e300, 12345678901 }\n\
             local function f(n) if n == 'k' or n == 2.5 or n == nil or n == true or n < a.x then return n // 2 end end\n\
             local s, m = math.floor(a.x), string.format('%d', f(2))\nlocal c = a:go(s, m, 1 - a.x, 2 / a.x, a.x ^ 2, #b, not b)\n\
             while c do c = c.next end\nrepeat local q = c until q\nfor i = #b, 1, -1 do b[i] = nil end\n\
             for _, v in ipairs(b) do a[v] = math.max(v, 1, 2) end\nreturn last_one(select('#', ...))",
            &["4:math.floor", "4:string.format", "9:ipairs", "9:math.max", "10:last_one", "10:select"],
        );
    }

    #[test]
    fn an_unknown_form_yields_nothing() {
        assert!(Reader { bytes: &[200, 3, 0], at: 0 }.chunk().is_none());
        assert!(Reader { bytes: &[9, 3, 1], at: 0 }.chunk().is_none());
    }
}
