//! The floor: plugins executed one after another from a plain loop, a thread per namespace.
//!
//! It parses, searches, locks and logs nothing, and sets no deadlines; a plugin's output is pasted into the
//! next one's input. No runtime can be faster than this without running fewer plugins.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Map, Value};

use crate::protocol::{Order, Times};
use crate::usage::nanos;

struct Plugin {
    path: PathBuf,
    /// Its input without the closing brace.
    head: Vec<u8>,
}

pub(crate) fn attach(bin_dir: &Path, order: &Order) -> Result<Vec<Vec<Times>>> {
    let plugins = plugins(bin_dir, &order.list)?;
    thread::scope(|scope| {
        let lanes = order.netns.iter().enumerate().map(|(lane, netns)| {
            let plugins = &plugins;
            scope.spawn(move || {
                (0..order.ops).map(|op| once(bin_dir, plugins, &format!("c{lane}-{op}"), netns)).collect()
            })
        });
        lanes
            .collect::<Vec<_>>()
            .into_iter()
            .map(|lane| lane.join().map_err(|_| anyhow!("a lane panicked"))?)
            .collect()
    })
}

fn plugins(bin_dir: &Path, list: &str) -> Result<Vec<Plugin>> {
    let list: Map<String, Value> = serde_json::from_str(list)?;
    let plugins = list.get("plugins").and_then(Value::as_array).context("the list has no plugins")?;
    plugins
        .iter()
        .map(|plugin| {
            let mut conf = plugin.as_object().context("a plugin is not an object")?.clone();
            for key in ["cniVersion", "name"] {
                conf.insert(
                    key.to_owned(),
                    list.get(key).with_context(|| format!("the list has no {key}"))?.clone(),
                );
            }
            let name = conf.get("type").and_then(Value::as_str).context("a plugin has no type")?;
            let path = bin_dir.join(name);
            let mut head = serde_json::to_vec(&conf)?;
            head.pop();
            Ok(Plugin { path, head })
        })
        .collect()
}

fn once(bin_dir: &Path, plugins: &[Plugin], container: &str, netns: &str) -> Result<Times> {
    let begin = Instant::now();
    let mut result = Vec::new();
    for plugin in plugins {
        result = exec(bin_dir, plugin, "ADD", container, netns, &result)?;
    }
    let added = Instant::now();
    for plugin in plugins.iter().rev() {
        exec(bin_dir, plugin, "DEL", container, netns, &result)?;
    }
    Ok((nanos(begin, added), nanos(added, Instant::now())))
}

fn exec(
    bin_dir: &Path,
    plugin: &Plugin,
    verb: &str,
    container: &str,
    netns: &str,
    prev: &[u8],
) -> Result<Vec<u8>> {
    let mut child = Command::new(&plugin.path)
        .env("CNI_COMMAND", verb)
        .env("CNI_CONTAINERID", container)
        .env("CNI_NETNS", netns)
        .env("CNI_IFNAME", "net1")
        .env("CNI_ARGS", "IgnoreUnknown=1")
        .env("CNI_PATH", bin_dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {}", plugin.path.display()))?;
    let mut stdin = child.stdin.take().context("no standard input")?;
    let mut input = plugin.head.clone();
    if !prev.is_empty() {
        input.extend_from_slice(b",\"prevResult\":");
        input.extend_from_slice(prev);
    }
    input.push(b'}');
    stdin.write_all(&input)?;
    drop(stdin);
    let mut output = Vec::new();
    child.stdout.take().context("no standard output")?.read_to_end(&mut output)?;
    if !child.wait()?.success() {
        bail!("{verb} of {} failed: {}", plugin.path.display(), String::from_utf8_lossy(&output));
    }
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugins_input_is_its_configuration_with_version_and_name_of_the_list() {
        let list = r#"{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"a","x":1},{"type":"b"}]}"#;
        let plugins = plugins(Path::new("/bin"), list).unwrap();
        assert_eq!(plugins.len(), 2);
        assert_eq!(plugins[0].path, Path::new("/bin/a"));
        let mut input = plugins[0].head.clone();
        input.push(b'}');
        let input: Value = serde_json::from_slice(&input).unwrap();
        assert_eq!(input, serde_json::json!({"type": "a", "x": 1, "cniVersion": "1.1.0", "name": "n"}));
    }
}
