//! The `lazy-mcp` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    // Before anything else is looked at: a keeper has no runtime, no command line of its own and no log.
    if std::env::args_os().nth(1).is_some_and(|command| command == "keeper") {
        return lazy_mcp_broker::ownership::keeper::main();
    }
    lazy_mcp_broker::cli::main()
}
