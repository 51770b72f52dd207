//! kubeconform over what admins commit to Git: what the chart renders, and the files beside it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use netclaim_tests::helm::{Helm, chart};
use netclaim_tests::objects::{list, text};
use netclaim_tests::{Cluster, Test, output, programs, project};
use serde_json::{Map, Value, json};

/// As many of the chart's objects as there are at once, but for cert-manager's, which the cluster does not
/// know.
const EVERYTHING: &str = "enabled=true,webhook.enabled=true,controller.replicas=2,controller.podDisruptionBudget.enabled=true,\
                          controller.networkPolicy.enabled=true,rbac.everybodyReadsClaimNetworks=true,plugins.image=x,\
                          monitoring.dashboard.enabled=true,commonLabels.team=net,\
                          defaultNetworks.enabled=true,hotAttach.enabled=true,gate.allContainers=Labelled,\
                          primary.enabled=true,primary.nodeSelector.eth0=claimed";

/// Kustomizations in `deploy`.
const KUSTOMIZATIONS: [&str; 5] = ["crds", "examples", "host-mounts", "manifests", "whereabouts-stopped"];

/// kubeconform with the schemas of a cluster's API server: those that it knows itself are a download.
struct Kubeconform {
    program: PathBuf,
    schemas: PathBuf,
}

impl Kubeconform {
    fn new(test: &Test<'_>) -> Result<Self> {
        let program = programs::built_or_skipped(test, "kubeconform")?;
        let schemas = test.cluster.dir().join("schemas");
        write_schemas(test.cluster, &schemas)?;
        Ok(Self { program, schemas })
    }

    /// Checks that all of these objects are what the API server takes. Fields and kinds that it does not know
    /// are mistakes.
    fn check(&self, objects: &str) -> Result<()> {
        let file = self.schemas.with_extension("yaml");
        fs::write(&file, objects)?;
        let names = "{{.Group}}_{{.ResourceAPIVersion}}_{{.ResourceKind}}.json";
        let mut command = Command::new(&self.program);
        command.args(["-strict", "-summary", "-schema-location"]).arg(self.schemas.join(names));
        let summary = output(command.arg(file))?;
        let count = objects.lines().filter(|line| line.starts_with("kind: ")).count();
        ensure!(
            summary.contains(&format!("Valid: {count}, Invalid: 0, Errors: 0, Skipped: 0")),
            "{count}: {summary}"
        );
        Ok(())
    }
}

/// Writes a schema for each kind, all of which refer to the definitions in one file.
fn write_schemas(cluster: &Cluster, dir: &Path) -> Result<()> {
    let mut openapi: Value = serde_json::from_str(&cluster.kubectl(&["get", "--raw", "/openapi/v2"])?)?;
    let definitions = openapi["definitions"].as_object_mut().context("no definitions")?;
    let mut schemas = BTreeMap::new();
    for (name, definition) in &mut *definitions {
        for kind in list(&definition["x-kubernetes-group-version-kind"]) {
            let [group, version, kind] = ["group", "version", "kind"].map(|key| text(&kind[key]));
            let group = if group.is_empty() { &version } else { &group };
            let file = format!("{group}_{version}_{}.json", kind.to_lowercase());
            schemas.insert(file, json!({"$ref": format!("definitions.json#/definitions/{name}")}));
        }
        strict(definition);
    }
    // Schemas say string, and the API server takes numbers.
    for name in
        ["io.k8s.apimachinery.pkg.api.resource.Quantity", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"]
    {
        let definition = definitions.get_mut(name).with_context(|| format!("no {name}"))?;
        *definition = json!({"type": ["string", "number"]});
    }
    let all = ("definitions.json".to_owned(), json!({"definitions": definitions}));
    fs::create_dir_all(dir)?;
    for (file, schema) in schemas.into_iter().chain([all]) {
        fs::write(dir.join(file), schema.to_string())?;
    }
    Ok(())
}

/// Forbids fields that an object does not have.
fn strict(schema: &mut Value) {
    let Value::Object(object) = schema else {
        list_mut(schema).for_each(strict);
        return;
    };
    let is_open = |object: &Map<String, Value>| {
        object.contains_key("additionalProperties")
            || object.contains_key("x-kubernetes-preserve-unknown-fields")
    };
    if object.get("properties").is_some_and(Value::is_object) && !is_open(object) {
        object.insert("additionalProperties".to_owned(), json!(false));
    }
    object.values_mut().for_each(strict);
}

fn list_mut(value: &mut Value) -> impl Iterator<Item = &mut Value> {
    value.as_array_mut().into_iter().flatten()
}

pub fn kubeconform_finds_no_mistakes(test: &Test<'_>) -> Result<()> {
    let (helm, kubeconform) = (Helm::new(test.cluster)?, Kubeconform::new(test)?);
    for values in ["enabled=true", EVERYTHING] {
        let objects = helm.template(&chart(), &["--set", values])?;
        kubeconform.check(&objects).with_context(|| format!("the chart with {values}"))?;
    }
    for folder in KUSTOMIZATIONS {
        let path = project("deploy").join(folder);
        let objects = test.cluster.kubectl(&["kustomize", &path.to_string_lossy()])?;
        kubeconform.check(&objects).with_context(|| format!("deploy/{folder}"))?;
    }
    let misspelt = helm.template(&chart(), &[])?.replacen("serviceAccountName:", "serviceAccuntName:", 1);
    let refused = kubeconform.check(&misspelt).err().context("a misspelt field is accepted")?;
    ensure!(format!("{refused:#}").contains("serviceAccuntName"), "{refused:#}");
    Ok(())
}
