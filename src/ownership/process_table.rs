//! The kernel's process table, read in one pass over `/proc`.
//!
//! A pass is not atomic: a process found may be gone, and one that appeared behind the reader is missed. Whoever
//! needs certainty passes again (`sweep`) or asks `waitpid` (`keeper`).
//! Fields are those of proc(5), `/proc/pid/stat`.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// Names one process for the time of one boot: a pid comes again, a pid with its start time does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProcessId {
    pub pid: u32,
    /// Clock ticks after boot (1/100 s on every Linux that we know).
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this pid now. A zombie has one still.
    pub fn of(pid: u32) -> Option<Self> {
        Process::read(pid).map(|process| process.id())
    }

    /// Whether exactly this process still runs. A zombie does not.
    pub fn is_alive(self) -> bool {
        Process::read(self.pid).is_some_and(|now| now.start_time == self.start_time && !now.is_zombie())
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pub pid: u32,
    pub ppid: u32,
    /// Clock ticks after boot.
    pub start_time: u64,
    pub session: u32,
    /// `R` running, `S` sleeping, `D` waiting for a device, `T` stopped, `Z` zombie, …
    pub state: char,
    /// The name that the process gave itself; at most 15 bytes, never a reason to signal it.
    pub comm: String,
    pub rss_bytes: u64,
}

impl Process {
    /// `None` when there is no such process.
    pub fn read(pid: u32) -> Option<Self> {
        // Longer than any line that the kernel writes here: 52 numbers of at most 20 digits and a short name.
        let mut line = [0; 2048];
        let mut file = File::open(format!("/proc/{pid}/stat")).ok()?;
        let len = file.read(&mut line).ok()?;
        Self::parse(&line[..len])
    }

    pub fn id(&self) -> ProcessId {
        ProcessId { pid: self.pid, start_time: self.start_time }
    }

    /// Dead, and waiting for its parent to look.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }

    fn parse(line: &[u8]) -> Option<Self> {
        let line = String::from_utf8_lossy(line);
        // The name may hold blanks and parentheses itself, so it ends at the last one.
        let (head, tail) = (line.find('(')?, line.rfind(')')?);
        let comm = line.get(head + 1..tail)?.to_owned();
        let pid = line[..head].trim().parse().ok()?;
        let mut fields = line[tail + 1..].split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        let ppid = fields.next()?.parse().ok()?;
        let session = fields.nth(1)?.parse().ok()?;
        let start_time = fields.nth(15)?.parse().ok()?;
        let rss_pages: u64 = fields.nth(1)?.parse().ok()?;
        Some(Self { pid, ppid, start_time, session, state, comm, rss_bytes: rss_pages * page_bytes() })
    }
}

/// One pass over all processes.
#[derive(Clone, Debug, Default)]
pub struct ProcessTable(Vec<Process>);

/// What a tree takes from the machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Zombies are not counted.
    pub processes: usize,
    /// Sum of resident sizes; pages that processes share count in each of them.
    pub rss_bytes: u64,
}

impl ProcessTable {
    /// # Errors
    /// `/proc` is not readable.
    pub fn read() -> io::Result<Self> {
        let mut processes = Vec::with_capacity(256);
        visit(|process| processes.push(process))?;
        Ok(Self(processes))
    }

    pub fn iter(&self) -> impl Iterator<Item = &Process> {
        self.0.iter()
    }

    pub fn get(&self, id: ProcessId) -> Option<&Process> {
        self.0.iter().find(|process| process.id() == id)
    }

    /// Children of `ancestor`, their children and so on; `ancestor` itself is not among them.
    pub fn descendants(&self, ancestor: u32) -> Vec<&Process> {
        let mut family = BTreeSet::from([ancestor]);
        let mut found = Vec::new();
        let mut others: Vec<&Process> = self.0.iter().filter(|process| process.pid != ancestor).collect();
        // Children mostly have higher pids than their parents, so one or two turns are enough.
        loop {
            let before = found.len();
            others.retain(|process| {
                let related = family.contains(&process.ppid);
                if related {
                    family.insert(process.pid);
                    found.push(*process);
                }
                !related
            });
            if found.len() == before {
                return found;
            }
        }
    }

    /// What the descendants of `ancestor` take.
    pub fn usage(&self, ancestor: u32) -> Usage {
        let living = self.descendants(ancestor).into_iter().filter(|process| !process.is_zombie());
        living.fold(Usage::default(), |sum, process| Usage {
            processes: sum.processes + 1,
            rss_bytes: sum.rss_bytes + process.rss_bytes,
        })
    }
}

/// Shows each process as soon as it is read, so that a sweep can act before it forks again.
pub(super) fn visit(mut look: impl FnMut(Process)) -> io::Result<()> {
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        if let Some(process) = pid.and_then(Process::read) {
            look(process);
        }
    }
    Ok(())
}

/// Children of `parent` as the kernel lists them: far faster than a pass, and not complete while they fork and exit
/// (proc(5), `/proc/pid/task/tid/children`). Empty where the kernel keeps no such file.
pub(super) fn children(parent: u32) -> Vec<u32> {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{parent}/task")) else { return Vec::new() };
    let lists = threads.flatten().filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect()
}

/// The start time that a process would have now; one that is started later has this or more.
pub(super) fn ticks_since_boot() -> Option<u64> {
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    // Seconds with two digits behind the point: hundredths, as start times are.
    let (seconds, hundredths) = uptime.split_ascii_whitespace().next()?.split_once('.')?;
    Some(seconds.parse::<u64>().ok()? * 100 + hundredths.parse::<u64>().ok()?)
}

/// Differs after each boot; with it a [`ProcessId`] may be kept in a file.
///
/// # Errors
/// `/proc` is not readable.
pub fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

fn page_bytes() -> u64 {
    static PAGE_BYTES: OnceLock<u64> = OnceLock::new();
    *PAGE_BYTES.get_or_init(|| {
        let answer = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE);
        answer.ok().flatten().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(4096)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(comm: &str) {
        let line = format!(
            "4242 ({comm}) S 17 4242 99 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 1000 25 184 1 1 0 0 0 0 0 0 0 0"
        );
        let process = Process::parse(line.as_bytes()).expect("a whole line");
        assert_eq!((process.pid, process.ppid, process.session, process.state), (4242, 17, 99, 'S'));
        assert_eq!((process.comm.as_str(), process.start_time), (comm, 123_456));
        assert_eq!(process.rss_bytes, 25 * page_bytes());
    }

    #[test]
    fn reads_a_line_whatever_the_name() {
        for comm in ["node", "Web Content", "a) R 1 (b", "", "((", "))"] {
            check(comm);
        }
        assert_eq!(Process::parse(b"4242 (cut) S 17"), None);
        assert_eq!(Process::parse(b""), None);
    }

    #[test]
    fn this_process_is_in_the_table_with_the_identity_it_has_alone() {
        let me = ProcessId::of(std::process::id()).expect("running");
        let table = ProcessTable::read().unwrap();
        assert_eq!(table.get(me).map(Process::id), Some(me));
        assert!(me.is_alive());
        assert!(!ProcessId { start_time: me.start_time + 1, ..me }.is_alive());
    }

    #[test]
    fn a_process_started_now_is_not_older_than_now() {
        let now = ticks_since_boot().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let started = ProcessId::of(child.id()).unwrap().start_time;
        child.wait().unwrap();
        assert!((now..now + 500).contains(&started), "{now} {started}");
    }

    #[test]
    fn descendants_are_found_whatever_the_order_of_pids() {
        let process = |pid, ppid| Process {
            pid,
            ppid,
            start_time: 0,
            session: 0,
            state: if pid == 4 { 'Z' } else { 'S' },
            comm: String::new(),
            rss_bytes: 10,
        };
        let table = ProcessTable(vec![
            process(2, 9),
            process(4, 8),
            process(8, 5),
            process(5, 1),
            process(9, 5),
            process(7, 1),
        ]);
        let mut pids: Vec<u32> = table.descendants(5).iter().map(|process| process.pid).collect();
        pids.sort_unstable();
        assert_eq!(pids, [2, 4, 8, 9]);
        assert_eq!(table.usage(5), Usage { processes: 3, rss_bytes: 30 });
    }
}
