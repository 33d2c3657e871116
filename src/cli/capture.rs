//! `lazy-mcp catalog capture`: starts a server by itself, without the broker, and proves it gone.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use serde_json::value::RawValue;
use tokio_util::task::TaskTracker;

use super::check::counted;
use super::{backend_of, block_on, eprint_line, print_line, replace_file};
use crate::catalog::{self, Capture, Catalog};
use crate::config::{self, BackendConfig, Config, InstanceContext, Package, Surroundings};
use crate::exit::{Exit, Failure};
use crate::link::{Greeting, HandshakeError, Link, LinkLimits, Nobody, RequestError, Streams};
use crate::ownership::{
    self, InstanceDir, KeeperProgram, Marker, NotStarted, Owners, Remains, Started, Sweep, Tree, become_subreaper,
};
use crate::protocol::raw::{members, string};
use crate::supervisor::windows_side;

/// Sweeps tried before the command says that it could not prove the end.
const SWEEPS_MAX: u32 = 5;

/// How long a server may think about whether it is modern. One that is answers at once; the time is for its start.
const PROBE_MAX: Duration = Duration::from_secs(20);

pub(super) fn run(path: &Path, name: &str) -> anyhow::Result<Exit> {
    let config = config::load_alone(path)?;
    let backend = backend_of(&config, name)?;
    let previous = if backend.catalog.exists() { Some(catalog::load(&backend.catalog)?) } else { None };
    let scratch = scratch_dir()?;
    let result = block_on(capture(&config, backend, &scratch));
    // Only when nothing can use it any more; else it stays in the temporary directory. Gone already as a rule.
    if result.as_ref().is_ok_and(|(_, proved)| *proved) {
        let _ = std::fs::remove_dir_all(&scratch);
    }
    let (live, proved) = result?;
    let live = live.with_context(|| format!("failed to capture `{name}`"));
    let live = match (live, proved) {
        (Ok(live), true) => live,
        (Ok(_), false) => {
            return Err(Failure::new(
                Exit::NotProved,
                format!("the server '{name}' could not be proved gone; no catalog was written"),
            )
            .into());
        }
        (Err(e), true) => return Err(e),
        (Err(e), false) => {
            return Err(Failure::new(Exit::NotProved, format!("{e:#}; and the server could not be proved gone")).into());
        }
    };
    write(&backend.catalog, previous.as_ref(), live.into_capture(name.to_owned(), backend.package()))?;
    Ok(Exit::Done)
}

/// What a live server said.
struct Live {
    /// The modern version, if it is spoken.
    modern_version: Option<String>,
    greeting: Greeting,
    tools: Vec<Box<RawValue>>,
    resources: Vec<Box<RawValue>>,
    resource_templates: Vec<Box<RawValue>>,
    prompts: Vec<Box<RawValue>>,
}

impl Live {
    /// Without a package in the configuration, a server is what it calls itself.
    fn into_capture(self, backend: String, package: Option<Package>) -> Capture {
        let package = package.unwrap_or_else(|| {
            let own = |member| match members(self.greeting.server_info.get(), [member]) {
                Ok([Some(raw)]) => string(raw).map(|text| text.into_owned()),
                _ => None,
            };
            let unknown = || "unknown".to_owned();
            Package { name: own("name").unwrap_or_else(unknown), version: own("version").unwrap_or_else(unknown) }
        });
        Capture {
            backend,
            package: package.name,
            version: package.version,
            captured_at: format!("{:.0}", jiff::Timestamp::now()),
            protocol_version: self.greeting.protocol_version,
            modern_version: self.modern_version,
            server_info: self.greeting.server_info,
            capabilities: self.greeting.capabilities,
            instructions: self.greeting.instructions,
            tools: self.tools,
            resources: self.resources,
            resource_templates: self.resource_templates,
            prompts: self.prompts,
        }
    }
}

/// What a server says of itself, in both manners of speaking. Each is tried on a server of its own: some end when they
/// are asked what they do not know. The second part of the answer is whether everything was proved gone.
async fn capture(
    config: &Config,
    backend: &BackendConfig,
    scratch: &Path,
) -> anyhow::Result<(anyhow::Result<Live>, bool)> {
    become_subreaper().context("become the parent of orphaned processes")?;
    let start = backend.deadlines.start;
    let (legacy, proved) = with_server(config, backend, scratch, 1, start, |link| Box::pin(ask_legacy(link))).await?;
    if !proved {
        return Ok((legacy.map_err(Into::into), false));
    }
    let mut live = match legacy {
        Ok(live) => live,
        Err(refused) if refused.is_refusal() => {
            let (modern, proved) =
                with_server(config, backend, scratch, 2, start, |link| Box::pin(ask_modern(link))).await?;
            // What it says to those who are not meant is what most readers know.
            return Ok((modern.map_err(|_| refused.into()), proved));
        }
        Err(fault) => return Ok((Err(fault.into()), true)),
    };
    let (modern, proved) = with_server(config, backend, scratch, 2, start.min(PROBE_MAX), |link| {
        Box::pin(async move { Ok(link.discover().await?) })
    })
    .await?;
    // Whatever else it said or did not say: it speaks the legacy one alone.
    live.modern_version = modern.ok().map(|greeting| greeting.protocol_version);
    Ok((Ok(live), proved))
}

/// Why a server gave no answer, and the last line that it wrote to stderr.
struct Unanswered {
    error: anyhow::Error,
    last_words: Option<String>,
}

impl Unanswered {
    /// Whether it does not want to be greeted in the legacy manner: some say so, some end.
    fn is_refusal(&self) -> bool {
        matches!(
            self.error.downcast_ref(),
            Some(
                HandshakeError::Initialize(RequestError::Refused { .. } | RequestError::Lost)
                    | HandshakeError::Version(_)
            )
        )
    }
}

impl From<anyhow::Error> for Unanswered {
    fn from(error: anyhow::Error) -> Self {
        Self { error, last_words: None }
    }
}

impl From<Unanswered> for anyhow::Error {
    fn from(Unanswered { error, last_words }: Unanswered) -> Self {
        match last_words {
            Some(line) => anyhow::anyhow!("{error:#}; last line of its stderr: {line}"),
            None => error,
        }
    }
}

type Asked<'l, T> = std::pin::Pin<Box<dyn Future<Output = anyhow::Result<T>> + 'l>>;

/// Starts a server, asks it something, stops it. The second part of the answer is whether the tree was proved empty.
async fn with_server<T>(
    config: &Config,
    backend: &BackendConfig,
    scratch: &Path,
    number: u64,
    budget: Duration,
    ask: impl for<'l> FnOnce(&'l Link) -> Asked<'l, T>,
) -> anyhow::Result<(Result<T, Unanswered>, bool)> {
    let tracker = TaskTracker::new();
    let dir = InstanceDir::create(scratch, "capture", number).context("make a directory for the server")?;
    // Of this capture alone, as an instance's is: whoever has it is ended on Windows.
    let instance_id = format!("capture-{}", random_name()?);
    let marker = Marker::of(&backend.name, &instance_id, number).context("make a marker of its name")?;
    let context = InstanceContext {
        instance_id,
        generation: number,
        instance_dir: dir.path().to_owned(),
        scope_key_hash: "capture".into(),
        marker: marker.to_string(),
    };
    let surroundings = Surroundings::of_this_process();
    let launch = backend.resolve(&config.vars, &context, &surroundings)?;
    let owners = Owners { cgroup: None, windows: windows_side(backend, &config.vars, &surroundings, marker)? };
    eprint_line(&format!("starting {} …", backend.name));
    let started = ownership::start(owners, &KeeperProgram::own(), &launch, &tracker).await;
    let Started { tree, pipes } = match started {
        Ok(started) => started,
        Err(NotStarted { error, remains: None }) => return Err(error.into()),
        Err(NotStarted { error, remains: Some(remains) }) => {
            let proved = prove(&remains, backend).await;
            return Ok((Err(anyhow::Error::from(error).into()), proved));
        }
    };
    let streams = Streams { stdin: pipes.stdin, stdout: pipes.stdout, stderr: pipes.stderr };
    let link =
        Link::open(streams, LinkLimits { frame_len_max: config.server.frame_bytes_max }, Arc::new(Nobody), &tracker);
    let asked = tokio::time::timeout(budget, ask(&link)).await;
    let answer = asked.unwrap_or_else(|_| Err(anyhow::anyhow!("no answer within {} s", budget.as_secs())));
    let answer = answer.map_err(|error| Unanswered { error, last_words: link.stderr_tail().pop() });
    let proved = stop(&tree, &link, backend).await;
    if proved && let Err(e) = dir.remove() {
        eprint_line(&format!("lazy-mcp: failed to {e}"));
    }
    Ok((answer, proved))
}

async fn ask_legacy(link: &Link) -> anyhow::Result<Live> {
    let greeting = link.handshake("{}").await?;
    lists(link, greeting, None).await
}

async fn ask_modern(link: &Link) -> anyhow::Result<Live> {
    let greeting = link.discover().await?;
    let version = greeting.protocol_version.clone();
    lists(link, greeting, Some(version)).await
}

async fn lists(link: &Link, greeting: Greeting, modern_version: Option<String>) -> anyhow::Result<Live> {
    let (has_resources, has_prompts) = (greeting.offers("resources"), greeting.offers("prompts"));
    let mut live = Live {
        modern_version,
        tools: if greeting.offers("tools") { link.list("tools/list", "tools").await? } else { Vec::new() },
        greeting,
        resources: Vec::new(),
        resource_templates: Vec::new(),
        prompts: Vec::new(),
    };
    if has_resources {
        live.resources = link.list("resources/list", "resources").await?;
        // Servers may offer resources and no templates, and then some do not know the method.
        live.resource_templates = link.list("resources/templates/list", "resourceTemplates").await.unwrap_or_default();
    }
    if has_prompts {
        live.prompts = link.list("prompts/list", "prompts").await?;
    }
    Ok(live)
}

/// Polite close, SIGTERM, kill; whether the tree was proved empty.
async fn stop(tree: &Tree, link: &Link, backend: &BackendConfig) -> bool {
    let begun = Instant::now();
    link.close_stdin();
    if tokio::time::timeout(backend.deadlines.polite, tree.root_exit()).await.is_err() {
        tree.terminate();
        let _ = tokio::time::timeout(Duration::from_secs(1), tree.root_exit()).await;
    }
    let proved = prove(tree.remains(), backend).await;
    if proved {
        eprint_line(&format!("stopped and proved gone in {} ms", begun.elapsed().as_millis()));
    }
    proved
}

async fn prove(remains: &Remains, backend: &BackendConfig) -> bool {
    for _ in 0..SWEEPS_MAX {
        match remains.sweep(backend.deadlines.stop).await {
            Sweep::Empty { .. } => return true,
            Sweep::Busy { reason: Some(reason), .. } => eprint_line(&format!("not proved gone: {reason}")),
            Sweep::Busy { reason: None, .. } => {}
        }
    }
    false
}

fn write(path: &Path, previous: Option<&Catalog>, capture: Capture) -> anyhow::Result<()> {
    let tools = capture.tools.len();
    let merged = catalog::merge(previous, capture)?;
    replace_file(path, &merged.text).with_context(|| format!("write the catalog `{}`", path.display()))?;
    merged.changes.iter().for_each(|change| print_line(&change.to_string()));
    print_line(&format!("{}: {}", path.display(), counted(tools, "tool")));
    Ok(())
}

fn random_name() -> anyhow::Result<String> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(std::io::Error::other)?;
    Ok(format!("{:016x}", u64::from_be_bytes(random)))
}

fn scratch_dir() -> anyhow::Result<std::path::PathBuf> {
    let path = std::env::temp_dir().join(format!("lazy-mcp-capture-{}", random_name()?));
    std::fs::DirBuilder::new().mode(0o700).create(&path).with_context(|| format!("make `{}`", path.display()))?;
    Ok(path)
}
