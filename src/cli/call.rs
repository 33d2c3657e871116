//! `lazy-mcp call`.

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use clap::Args;
use rmcp::model::CallToolResult;
use serde_json::{Map, Value};

use super::client::Session;
use super::{BrokerArgs, block_on, eprint_line, print_line};
use crate::exit::{Exit, Failure};

#[derive(Clone, Debug, Args)]
pub(super) struct CallArgs {
    /// The backend, as the configuration names it.
    backend: String,
    tool: String,
    /// Arguments of the tool; a value that reads as JSON is taken as JSON, any other as text.
    #[arg(value_name = "KEY=VALUE", conflicts_with = "json")]
    arguments: Vec<String>,
    /// All arguments as one JSON object.
    #[arg(long, value_name = "OBJECT")]
    json: Option<String>,
    /// Print the whole result as JSON.
    #[arg(long)]
    raw: bool,
    #[command(flatten)]
    pub broker: BrokerArgs,
}

/// A call that takes longer than this says on a terminal that it is waiting.
const PATIENCE: Duration = Duration::from_secs(2);

pub(super) fn run(base: &str, args: &CallArgs) -> anyhow::Result<Exit> {
    let arguments = arguments(args)?;
    let result = block_on(async {
        let session = Session::open(base, &args.backend).await?;
        let result = watched(&args.backend, session.call(&args.tool, arguments)).await;
        session.close().await;
        result
    })?;
    if args.raw {
        print_line(&serde_json::to_string(&result)?);
    } else {
        show(&result)?;
    }
    Ok(if result.is_error == Some(true) { Exit::NotSo } else { Exit::Done })
}

/// Runs a call and says on a terminal, every `PATIENCE`, that it goes on.
pub(super) async fn watched<T>(backend: &str, call: impl Future<Output = T>) -> T {
    let begun = Instant::now();
    let is_watched = std::io::stderr().is_terminal();
    tokio::pin!(call);
    loop {
        tokio::select! {
            result = &mut call => return result,
            () = tokio::time::sleep(PATIENCE) => {
                if is_watched {
                    eprint_line(&format!("waiting for {backend} ({} s) …", begun.elapsed().as_secs()));
                }
            }
        }
    }
}

fn arguments(args: &CallArgs) -> anyhow::Result<Map<String, Value>> {
    let usage = |why: String| anyhow::Error::from(Failure::new(Exit::Usage, why));
    if let Some(json) = &args.json {
        return serde_json::from_str(json).map_err(|e| usage(format!("--json takes a JSON object: {e}")));
    }
    let pair = |text: &String| {
        let (key, value) =
            text.split_once('=').ok_or_else(|| usage(format!("'{text}' is no argument; write key=value")))?;
        let value = serde_json::from_str(value).unwrap_or_else(|_| Value::from(value));
        Ok((key.to_owned(), value))
    };
    args.arguments.iter().map(pair).collect()
}

/// Text as it is; what is no text by its kind and size.
fn show(result: &CallToolResult) -> anyhow::Result<()> {
    let result = serde_json::to_value(result)?;
    for item in result["content"].as_array().into_iter().flatten() {
        match (item["type"].as_str(), item["text"].as_str()) {
            (Some("text"), Some(text)) => print_line(text),
            (kind, _) => {
                let size = item["data"].as_str().map(|data| format!(", {} bytes of base64", data.len()));
                let what = item["mimeType"].as_str().or(item["uri"].as_str()).unwrap_or_default();
                print_line(&format!("[{} {what}{}]", kind.unwrap_or("item"), size.unwrap_or_default()));
            }
        }
    }
    Ok(())
}
