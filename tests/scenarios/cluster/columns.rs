//! What `kubectl get` and `kubectl explain` show of netclaim's kinds.

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::objects::{attachment, claim, list, pod, policy, text};
use netclaim_tests::{Test, eventually};
use serde_json::json;

/// What fits into a terminal beside other windows.
const WIDTH: usize = 100;

/// Returns what `kubectl get` prints of one object, and its headers and cells. Lines that are too wide are an
/// error.
fn shown(test: &Test<'_>, kind: &str, name: &str) -> Result<(String, Vec<(String, String)>)> {
    let printed = test.cluster.kubectl(&["get", kind, name])?;
    let [header, row] = printed.lines().collect::<Vec<_>>()[..] else { anyhow::bail!("{printed}") };
    ensure!(header.len() <= WIDTH && row.len() <= WIDTH, "wider than {WIDTH}:\n{printed}");
    let begins = |(i, _): &(usize, char)| *i == 0 || header[..*i].ends_with(' ');
    let begins: Vec<usize> =
        header.char_indices().filter(|(_, c)| *c != ' ').filter(begins).map(|(i, _)| i).collect();
    let ends = begins.iter().skip(1).copied().chain([usize::MAX]);
    let cell = |line: &str, from: usize, to: usize| {
        line.get(from..to.min(line.len())).unwrap_or_default().trim().to_owned()
    };
    let cells = begins.iter().zip(ends).map(|(from, to)| (cell(header, *from, to), cell(row, *from, to)));
    let cells = cells.collect();
    Ok((printed, cells))
}

/// Waits until an object is shown so, and prints it; the age is not compared.
fn is_shown(test: &Test<'_>, kind: &str, name: &str, cells: &[(&str, &str)]) -> Result<()> {
    eventually(60, &format!("{kind} {name} is shown"), || is_shown_now(test, kind, name, cells))
}

/// The same with one look.
fn is_shown_now(test: &Test<'_>, kind: &str, name: &str, cells: &[(&str, &str)]) -> Result<()> {
    let (printed, mut found) = shown(test, kind, name)?;
    let age = found.pop().context("there is no column")?;
    ensure!(age.0 == "AGE" && !age.1.is_empty(), "{age:?} is the last column");
    let found: Vec<_> = found.iter().map(|(header, cell)| (header.as_str(), cell.as_str())).collect();
    ensure!(found == [&[("NAME", name)], cells].concat(), "{found:?}");
    println!("kubectl get {kind} {name}\n{printed}");
    Ok(())
}

pub fn kubectl_shows_what_is_accepted_and_who_has_addresses(test: &Test<'_>) -> Result<()> {
    let reserved = test.address(0, 200);
    let network = test.network("a", |network| {
        network["spec"]["addresses"] =
            json!({"ranges": [{"subnet": test.subnet(0)}], "reserved": [reserved], "blockSize": {"ipv4": 28}});
        network["spec"]["cni"]["plugins"][0]["ipam"] = json!("${addresses}");
        network["spec"]["allow"] = json!({"ips": {}});
    })?;
    let mut asking = claim("c", &network);
    asking["spec"]["devices"]["config"] = json!([attachment(json!({"ips": [reserved]}))]);
    test.create([asking, pod("p", &["c"])])?;
    test.runs("p")?;
    // The status may change at any time: it is read again for each look.
    eventually(60, "the columns have what the status says", || {
        let status = test.cluster.get(&["claimnetworks.netclaim.dev", &network])?["status"].clone();
        let number = |key: &str| status["addresses"][key].as_i64().context("the status has no totals");
        let (leased, free) = (number("leased")?, number("free")?);
        ensure!(leased > 0, "{status}");
        let (leased, free) = (leased.to_string(), free.to_string());
        let cells = [
            ("UPLINK", "eth1"),
            ("ACCEPTED", "True"),
            ("REASON", "Accepted"),
            ("AVAILABLE", "True"),
            ("NODES", "1"),
            ("LEASED", &leased),
            ("FREE", &free),
        ];
        is_shown_now(test, "claimnetworks.netclaim.dev", &network, &cells)
    })?;
    let blocks = test.cluster.get(&["addressblocks.netclaim.dev"])?;
    let block = list(&blocks["items"]).find(|block| block["spec"]["networkName"] == network);
    let block = block.context("there is no block")?;
    let (name, cidr) = (text(&block["metadata"]["name"]), text(&block["spec"]["cidr"]));
    let (printed, row) = shown(test, "addressblocks.netclaim.dev", &name)?;
    println!("kubectl get addressblocks.netclaim.dev {name}\n{printed}");
    let expected =
        [("NAME", name), ("NETWORK", network.clone()), ("NODE", "node0".to_owned()), ("BLOCK", cidr)];
    ensure!(
        row.iter()
            .zip(&expected)
            .all(|(found, (header, cell))| found == &((*header).to_owned(), cell.clone())),
        "{row:?}"
    );
    is_shown(
        test,
        "addressleases.netclaim.dev",
        &format!("{network}.{reserved}"),
        &[
            ("ADDRESS", &reserved),
            ("MAC", ""),
            ("NETWORK", &network),
            ("NAMESPACE", test.namespace()),
            ("HOLDER", "c"),
            ("NODE", "node0"),
        ],
    )?;
    test.delete_pod("p")?;

    let (pool, bad) = (test.name("pool"), test.name("bad"));
    test.create([
        json!({"apiVersion": "netclaim.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": pool},
            "spec": {"ranges": [{"subnet": test.subnet(1)}]}}),
        policy(&bad, json!({"links": {"names": ["none*"]}, "attributes": {"firmware": {"version": "7"}}})),
    ])?;
    let numbers = [("SIZE", "253"), ("LEASED", "0"), ("FREE", "253"), ("USED", "0")];
    let accepted =
        [("SUBNET", test.subnet(1)), ("ACCEPTED", "True".to_owned()), ("REASON", "Accepted".to_owned())];
    let accepted: Vec<_> = accepted.iter().map(|(header, cell)| (*header, cell.as_str())).collect();
    is_shown(test, "addresspools.netclaim.dev", &pool, &[&accepted[..], &numbers].concat())?;
    is_shown(
        test,
        "uplinkpolicies.netclaim.dev",
        &bad,
        &[("PUBLISH", "Auto"), ("ACCEPTED", "False"), ("REASON", "Invalid"), ("NODES", ""), ("LINKS", "")],
    )
}

pub fn kubectl_explains_the_values_of_attributes(test: &Test<'_>) -> Result<()> {
    for field in ["claimnetworks.spec.attributes", "uplinkpolicies.netclaim.dev.spec.attributes"] {
        let explained = test.cluster.kubectl(&["explain", field])?;
        for words in
            ["netclaim.dev", "A whole number, such as `7`.", "`true` or `false`.", "A text of at most"]
        {
            ensure!(explained.contains(words), "{field} lacks {words:?}:\n{explained}");
        }
    }
    Ok(())
}
