//! A page about a task: the objects and the commands that it shows, and a shell in which they run as its
//! reader would run them.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context as _, Result, anyhow, ensure};
use netclaim_tests::{Test, output, project};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A page with objects and commands.
pub struct Page<'a> {
    test: &'a Test<'a>,
    name: &'static str,
    text: String,
    /// A kubeconfig whose namespace is the scenario's, and netclaimctl as kubectl's plugin.
    shell: TempDir,
}

impl<'a> Page<'a> {
    /// Reads one of the pages about tasks.
    pub fn of(test: &'a Test<'a>, name: &'static str) -> Result<Self> {
        Self::in_folder(test, "docs/tasks", name)
    }

    /// Reads a page of `docs` itself.
    pub fn of_docs(test: &'a Test<'a>, name: &'static str) -> Result<Self> {
        Self::in_folder(test, "docs", name)
    }

    fn in_folder(test: &'a Test<'a>, folder: &str, name: &'static str) -> Result<Self> {
        let text = fs::read_to_string(project(folder).join(name)).with_context(|| name)?;
        let shell = TempDir::new()?;
        fs::copy(test.cluster.dir().join("kubeconfig"), shell.path().join("kubeconfig"))?;
        symlink(test.cluster.netclaimctl(), shell.path().join("kubectl-netclaim"))?;
        let page = Self { test, name, text, shell };
        page.run(&format!("kubectl config set-context --current --namespace={}", test.namespace()))?;
        Ok(page)
    }

    /// Has the page name other values, each of which it must have: what the nodes of the tests have instead.
    pub fn with(mut self, others: &[(&str, &str)]) -> Result<Self> {
        for (written, other) in others {
            ensure!(self.text.contains(written), "{} has no {written}", self.name);
            self.text = self.text.replace(written, other);
        }
        Ok(self)
    }

    /// The fenced blocks of a language.
    fn blocks(&self, language: &str) -> impl Iterator<Item = &str> {
        let inside = self.text.split("```").skip(1).step_by(2);
        inside.filter_map(move |block| block.strip_prefix(language)?.strip_prefix('\n'))
    }

    /// Every object of the page, with an image that the nodes have.
    pub fn objects(&self) -> Result<Vec<Value>> {
        let mut objects = Vec::new();
        for block in self.blocks("yaml") {
            let found: Vec<Value> = serde_saphyr::from_multiple(block).context(self.name)?;
            objects.extend(found);
        }
        for object in &mut objects {
            let spec = if object["kind"] == "Pod" { "/spec" } else { "/spec/template/spec" };
            let Some(pod) = object.pointer_mut(spec) else { continue };
            pod["terminationGracePeriodSeconds"] = json!(1);
            for kind in ["initContainers", "containers"] {
                let containers = pod.get_mut(kind).and_then(Value::as_array_mut);
                for container in containers.into_iter().flatten() {
                    container["image"] = json!("localhost/busybox:1");
                    container["imagePullPolicy"] = json!("Never");
                    // For ping: not every runtime grants it by default.
                    container["securityContext"] = json!({"capabilities": {"add": ["NET_RAW"]}});
                }
            }
        }
        Ok(objects)
    }

    /// The commands below each heading that has some, in the page's order.
    pub fn answers(&self) -> Vec<(&str, Vec<&str>)> {
        let headings = self.text.split("\n### ").skip(1);
        let commands = headings.map(|section| {
            let (heading, text) = section.split_once('\n').unwrap_or_default();
            let blocks = text.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
            (heading, blocks.flat_map(str::lines).collect::<Vec<_>>())
        });
        commands.filter(|(_, commands)| !commands.is_empty()).collect()
    }

    /// The page's only block of JSON.
    pub fn json(&self) -> Result<&str> {
        let blocks: Vec<&str> = self.blocks("json").collect();
        <[&str; 1]>::try_from(blocks)
            .map(|[block]| block)
            .map_err(|found| anyhow!("{}: {found:?}", self.name))
    }

    /// The commands by which the reader checks the result, each once: so many, so that an added command is
    /// not left out.
    pub fn checks<const COUNT: usize>(&self) -> Result<[String; COUNT]> {
        let (_, section) =
            self.text.split_once("\n## How to check\n").context("nothing says how to check")?;
        let section = section.split("\n## ").next().unwrap_or_default();
        let mut found: Vec<String> = Vec::new();
        for (number, part) in section.split("```").enumerate() {
            let commands: Vec<&str> = match part.split_once('\n') {
                // Outside of blocks, what is set as code and begins like a command.
                _ if number % 2 == 0 => {
                    part.split('`').skip(1).step_by(2).filter(|code| code.starts_with("kubectl ")).collect()
                }
                Some(("sh", lines)) => lines.lines().collect(),
                // A session: commands have a prompt, and what they print has none.
                Some(("", lines)) => lines.lines().filter_map(|line| line.strip_prefix("$ ")).collect(),
                _ => Vec::new(),
            };
            for command in commands {
                let command = command.split("  #").next().unwrap_or_default().trim().to_owned();
                if !found.contains(&command) {
                    found.push(command);
                }
            }
        }
        <[String; COUNT]>::try_from(found).map_err(|found| anyhow!("{} has {found:#?}", self.name))
    }

    /// Runs a command as the cluster's admin, in the scenario's namespace.
    pub fn run(&self, command: &str) -> Result<String> {
        let (env, shell) = (self.test.cluster.dir().join("env"), self.shell.path());
        let script = format!(
            ". {}\nexport KUBECONFIG={}/kubeconfig PATH={}:$PATH\n{command}",
            env.display(),
            shell.display(),
            shell.display()
        );
        output(Command::new("bash").args(["-c", &script])).with_context(|| self.name)
    }

    /// Runs a command whose table has a line for `name`, in its first column; returns the words of that line.
    pub fn line(&self, command: &str, name: &str) -> Result<Vec<String>> {
        let table = self.run(command)?;
        let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let line = table.lines().map(words).find(|words| words.first().is_some_and(|word| word == name));
        line.with_context(|| format!("{command} shows no {name}: {table}"))
    }

    /// The claim that was made for a pod of one claim.
    pub fn claim_of(&self, pod: &str) -> Result<String> {
        let statuses = self.test.get("pod", pod)?["status"]["resourceClaimStatuses"].clone();
        statuses[0]["resourceClaimName"]
            .as_str()
            .map(str::to_owned)
            .with_context(|| format!("{pod}: {statuses}"))
    }
}
