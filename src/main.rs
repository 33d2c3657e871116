//! The `lazy-mcp` binary: a keeper if it was started as one, else the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else: a keeper is to stay small and has no use for the rest.
    if std::env::args_os().nth(1).is_some_and(|command| command == "keeper") {
        return lazy_mcp_broker::ownership::keeper::main();
    }
    lazy_mcp_broker::cli::main()
}
