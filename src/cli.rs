//! The command line: what operators and scripts type. Facts go to stdout, messages to stderr.

mod call;
mod capture;
mod changes;
mod check;
mod client;
mod decide;
mod ending;
mod events;
mod policy;
mod probe;
mod reload;
mod status;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::catalog::Decision;
use crate::config::{BackendConfig, Config, DEFAULT_LISTEN};
use crate::core::diagnostic::suggestion;
use crate::exit::{Exit, Failure, code_of};

/// A broker between MCP clients and expensive stdio MCP servers.
///
/// Serves each configured server at http://127.0.0.1:8788/NAME/mcp with its reviewed tools. Starts a server at the
/// first real tool call, stops it when it has been idle, and proves that every process it owned is gone.
#[derive(Debug, Parser)]
#[command(name = "lazy-mcp", version, after_help = EXIT_CODES)]
struct Cli {
    /// Configuration file [default: config/broker.toml, then $XDG_CONFIG_HOME/lazy-mcp/broker.toml].
    #[arg(long, short, global = true, value_name = "FILE", env = "LAZY_MCP_CONFIG")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

const EXIT_CODES: &str = "Exit codes: 0 done and proved, 1 checked and not so, 2 usage, 3 configuration refused, \
4 broker not reached, 5 cleanup not proved.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the broker in the foreground until SIGTERM or SIGINT; then stop everything and prove it.
    Serve,
    /// Read configuration, catalogs and policies as `serve` would, and tell every fault with file and line.
    Check {
        /// Print the result as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show what runs, what waits and what could not be proved gone. Wakes nothing.
    Status {
        /// Print /status as it is.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        broker: BrokerArgs,
    },
    /// Show what happened to instances: starts, stops, proofs, failures. Newest last.
    Events {
        /// Go on with what happens, until the broker ends.
        #[arg(long, short)]
        follow: bool,
        /// Print each event as one line of JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        broker: BrokerArgs,
    },
    /// Stop one instance of a backend or all, once their calls are done, and wait for the proof.
    #[command(after_help = "Examples:\n  lazy-mcp stop playwright\n  lazy-mcp stop playwright/ab12cd34ef56")]
    Stop(ending::StopArgs),
    /// Look again at instances in cleanup_failed, kill what is left, and unlock what is proved gone.
    ///
    /// What cannot be proved gone is shown with the processes that are left and why. With --force one instance is set
    /// aside: the next call starts a new generation beside it, while it stays cleanup_failed in the status, is looked
    /// at on and on, and goes when it is proved gone. The exit code is 5 until then.
    #[command(
        after_help = "Examples:\n  lazy-mcp recover playwright\n  lazy-mcp recover playwright/ab12cd34ef56\n  lazy-mcp recover playwright/ab12cd34ef56 --force"
    )]
    Recover(ending::RecoverArgs),
    /// Read configuration, catalogs and policies again, and serve them if nothing is wrong with them.
    ///
    /// What has not changed keeps its processes; what is started differently ends its calls and is replaced. If anything
    /// is wrong nothing changes, and everything that is wrong is told with file and line.
    #[command(after_help = "Examples:\n  lazy-mcp reload --dry-run\n  lazy-mcp reload")]
    Reload(reload::ReloadArgs),
    /// Call a tool through the broker, which starts its server if need be.
    #[command(
        after_help = "Examples:\n  lazy-mcp call playwright browser_navigate url=http://localhost:3000\n  lazy-mcp call playwright browser_tabs --json '{\"action\":\"list\"}'"
    )]
    Call(call::CallArgs),
    /// Reviewed catalogs: what clients are told of a server without starting it.
    #[command(subcommand)]
    Catalog(CatalogCommand),
    /// Policies: check, test, compare, explain and accept them.
    #[command(subcommand)]
    Policy(policy::PolicyCommand),
    /// Prove with one harmless real call each that backends work, and that they are gone once idle.
    #[command(
        after_help = "Takes as long as the longest idle time of the backends probed. Needs a broker without other live instances of them."
    )]
    Probe(probe::ProbeArgs),
}

#[derive(Debug, Subcommand)]
enum CatalogCommand {
    /// Start the server once, take down what it offers, write its catalog, stop it and prove it gone.
    ///
    /// A first capture enables every tool. A later one keeps all decisions; new tools are excluded as "unreviewed".
    Capture {
        /// The backend, as the configuration names it.
        backend: String,
    },
    /// Let clients see a tool of the catalog.
    Enable {
        /// The backend, as the configuration names it.
        backend: String,
        tool: String,
    },
    /// Hide a tool of the catalog from clients; a call of it is refused as unknown.
    Exclude {
        /// The backend, as the configuration names it.
        backend: String,
        tool: String,
        /// Why, for whoever reads the catalog next.
        #[arg(long)]
        reason: String,
    },
}

/// Where the broker is.
#[derive(Clone, Debug, Args)]
pub(super) struct BrokerArgs {
    /// The broker's address [default: `listen` of the configuration].
    #[arg(long, value_name = "URL")]
    url: Option<String>,
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    // clap prints its own message and exits with 2 on wrong usage, 0 for help and version.
    let cli = Cli::parse();
    match run(cli) {
        Ok(exit) => exit.into(),
        Err(error) => {
            report(&error);
            code_of(&error).into()
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    let config = || config_path(cli.config.clone());
    match cli.command {
        Command::Serve => crate::app::serve(&config()?),
        Command::Check { json } => check::run(&config()?, json),
        Command::Status { json, broker } => status::run(&base_url(&broker, config)?, json),
        Command::Events { follow, json, broker } => events::run(&base_url(&broker, config)?, follow, json),
        Command::Stop(args) => {
            let token = token_file(&args.operator, config)?;
            ending::stop(&base_url(&args.operator.broker, config)?, &token, &args)
        }
        Command::Recover(args) => {
            args.check()?;
            let token = token_file(&args.operator, config)?;
            ending::recover(&base_url(&args.operator.broker, config)?, &token, &args)
        }
        Command::Reload(args) => reload::run(config().ok(), &args),
        Command::Call(args) => call::run(&base_url(&args.broker, config)?, &args),
        Command::Catalog(CatalogCommand::Capture { backend }) => capture::run(&config()?, &backend),
        Command::Catalog(CatalogCommand::Enable { backend, tool }) => {
            decide::run(&config()?, &backend, &tool, Decision::Enabled)
        }
        Command::Catalog(CatalogCommand::Exclude { backend, tool, reason }) => {
            decide::run(&config()?, &backend, &tool, Decision::Excluded { reason })
        }
        Command::Policy(command) => policy::run(&command, config),
        Command::Probe(args) => probe::run(&config()?, &args),
    }
}

/// The causes in one line each; a diagnostic is a line by itself already.
fn report(error: &anyhow::Error) {
    let mut text = format!("lazy-mcp: {error}");
    for cause in error.chain().skip(1) {
        text += &format!(": {cause}");
    }
    eprint_line(&text);
}

fn eprint_line(text: &str) {
    // Nobody may be reading any more; then there is nobody to tell.
    let _ = writeln!(io::stderr(), "{text}");
}

fn print_line(text: &str) {
    // As above: `lazy-mcp status | head -1` is no fault.
    let _ = writeln!(io::stdout(), "{text}");
}

fn config_path(given: Option<PathBuf>) -> anyhow::Result<PathBuf> {
    if let Some(path) = given {
        return Ok(path);
    }
    let local = Path::new("config/broker.toml");
    let home = std::env::var_os("XDG_CONFIG_HOME")
        .filter(|dir| !dir.is_empty())
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".config")));
    let user = home.map(|home| home.join("lazy-mcp/broker.toml"));
    let found = [Some(local.to_owned()), user.clone()].into_iter().flatten().find(|path| path.is_file());
    found.ok_or_else(|| {
        let tried = [Some(local.to_owned()), user].into_iter().flatten().map(|path| format!("`{}`", path.display()));
        let tried = tried.collect::<Vec<_>>().join(" and ");
        Failure::new(
            Exit::Refused,
            format!("no configuration: looked for {tried}; name one with --config FILE or LAZY_MCP_CONFIG"),
        )
        .into()
    })
}

/// Where the broker is to be asked: the address given, else the one that the configuration has it listen on.
fn base_url(broker: &BrokerArgs, config: impl FnOnce() -> anyhow::Result<PathBuf>) -> anyhow::Result<String> {
    match &broker.url {
        Some(url) => Ok(full_url(url)),
        // Who has no configuration at hand still finds a broker where brokers listen.
        None => match config() {
            Ok(path) => Ok(url_of(&crate::config::load_alone(&path)?)),
            Err(_) => Ok(format!("http://{DEFAULT_LISTEN}")),
        },
    }
}

/// Where the token of the broker is that the configuration is of.
fn token_file(
    operator: &ending::OperatorArgs,
    config: impl FnOnce() -> anyhow::Result<PathBuf>,
) -> anyhow::Result<PathBuf> {
    match &operator.token_file {
        Some(path) => Ok(path.clone()),
        None => Ok(crate::app::admin_token_path(&crate::config::load_alone(&config()?)?.server.state_dir)),
    }
}

/// A backend of the configuration; a wrong name is told with the nearest one.
fn backend_of<'a>(config: &'a Config, name: &str) -> anyhow::Result<&'a BackendConfig> {
    config.backends.get(name).ok_or_else(|| {
        let hint = suggestion(name, config.backends.keys().map(String::as_str));
        Failure::new(Exit::Usage, format!("no backend '{name}' in `{}`{hint}", config.path.display())).into()
    })
}

/// A file whole or not at all.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let part = path.with_extension("part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, path)
}

/// `localhost:8788` is good enough.
fn full_url(url: &str) -> String {
    let url = url.trim_end_matches('/');
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

fn url_of(config: &Config) -> String {
    format!("http://{}", config.server.listen)
}

/// Commands need no more than one thread, and no runtime outlives them.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(future)
}
