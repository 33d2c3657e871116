//! Policies from the file to the decision: what the shipped ones say, what broken ones get, what runaways get.

use std::path::Path;

use lazy_mcp_broker::policy::load;

#[test]
fn shipped_policies_load() {
    for name in ["playwright", "chrome-devtools", "agentation"] {
        let started = std::time::Instant::now();
        let policy = load(Path::new(&format!("policies/{name}.lua")));
        eprintln!("{:?}", started.elapsed());
        eprintln!("{policy:#?}");
        policy.unwrap();
    }
}
