//! The Kubernetes manifests: they match the API schemas, their references resolve, and their Redis suits Tidegate.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use conformance::server::{KINDS, Server};
use serde_json::{Value, json};
use tidegate_redis::RedisStore;
use tidegate_rule_tools::load_and_lint;

/// The Kubernetes version of the schemas.
const KUBERNETES_VERSION: &str = "1.34";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/k8s")
}

fn tool(name: &str) -> Command {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.tools/python/bin").join(name);
    assert!(tool.exists(), "{name} is missing: `make tools-prove` installs it");
    Command::new(tool)
}

/// A YAML file as JSON.
fn read(path: &Path) -> Value {
    let script = "import json, sys, yaml; json.dump(yaml.safe_load(open(sys.argv[1])), sys.stdout)";
    let output = tool("python").args(["-c", script]).arg(path).output().unwrap();
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Every manifest that `kubectl apply -k` sends, except generated ones.
fn manifests(folder: &Path) -> Vec<PathBuf> {
    let kustomization = read(&folder.join("kustomization.yaml"));
    let resources =
        kustomization["resources"].as_array().unwrap().iter().map(|name| folder.join(name.as_str().unwrap()));
    resources.flat_map(|path| if path.is_dir() { manifests(&path) } else { vec![path] }).collect()
}

#[test]
fn every_manifest_matches_the_kubernetes_schemas() {
    let files = manifests(&root());
    assert!(files.len() >= 7, "{files:?}");
    let output =
        tool("kubernetes-validate").args(["--strict", "-k", KUBERNETES_VERSION]).args(&files).output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{output_text}");
    assert_eq!(output_text.matches(" passed for resource ").count(), files.len(), "{output_text}");
}

#[test]
fn an_invalid_manifest_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let wrong =
        fs::read_to_string(root().join("redis/stateful-set.yaml")).unwrap().replace("periodSeconds", "periodSecond");
    fs::write(folder.path().join("wrong.yaml"), wrong).unwrap();
    let checked = tool("kubernetes-validate")
        .args(["--strict", "-k", KUBERNETES_VERSION])
        .arg(folder.path().join("wrong.yaml"))
        .output();
    assert!(!checked.unwrap().status.success());
}

#[test]
fn every_manifest_is_listed_in_a_kustomization() {
    fn below(folder: &Path, found: &mut BTreeSet<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                below(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                found.insert(path);
            }
        }
    }
    let mut there = BTreeSet::new();
    below(&root(), &mut there);
    there.retain(|path| !path.ends_with("kustomization.yaml") && !path.ends_with("rules.yaml"));
    assert_eq!(there, manifests(&root()).into_iter().collect());
}

#[test]
fn references_between_manifests_resolve() {
    let (redis, service) = (read(&root().join("redis/stateful-set.yaml")), read(&root().join("redis/service.yaml")));
    let gateway = read(&root().join("gateway/deployment.yaml"));
    assert_eq!(service["spec"]["clusterIP"], json!("None"), "headless");
    assert_eq!(redis["spec"]["serviceName"], service["metadata"]["name"]);
    for (set, labels) in
        [(&redis, &service["spec"]["selector"]), (&gateway, &gateway["spec"]["selector"]["matchLabels"])]
    {
        assert_eq!(set["spec"]["template"]["metadata"]["labels"], *labels);
        assert_eq!(set["spec"]["selector"]["matchLabels"], *labels);
    }
    let variables = gateway["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
    let value = |name: &str| variables.iter().find(|variable| variable["name"] == name).unwrap()["value"].clone();
    assert_eq!(
        value("TIDEGATE_STORE"),
        json!(format!("redis://{}:6379", service["metadata"]["name"].as_str().unwrap()))
    );
    assert_eq!(value("TIDEGATE_ADMIN"), json!("0.0.0.0:8082"), "probes reach it");
    for (name, key) in [("TIDEGATE_ADMIN_TOKEN", "admin-token"), ("TIDEGATE_ADMIN_READ_TOKEN", "read-token")] {
        let token = variables.iter().find(|variable| variable["name"] == name).expect("a public address needs a token");
        assert_eq!(token["valueFrom"]["secretKeyRef"], json!({ "name": "tidegate", "key": key }));
    }
    for (folder, set) in [("redis", &redis), ("gateway", &gateway)] {
        let generated = read(&root().join(folder).join("kustomization.yaml"))["configMapGenerator"][0].clone();
        assert_eq!(set["spec"]["template"]["spec"]["volumes"][0]["configMap"]["name"], generated["name"]);
        assert!(root().join(folder).join(generated["files"][0].as_str().unwrap()).exists());
    }
    let allowed = read(&root().join("redis/network-policy.yaml"));
    let from = &allowed["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"];
    assert_eq!(*from, gateway["spec"]["selector"]["matchLabels"]);
}

#[test]
fn the_redis_manifest_has_the_documented_memory_and_probes() {
    let redis = read(&root().join("redis/stateful-set.yaml"));
    let container = &redis["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(container["resources"]["requests"], json!({ "cpu": "100m", "memory": "300Mi" }));
    assert_eq!(container["resources"]["limits"], json!({ "cpu": "500m", "memory": "300Mi" }));
    for (probe, delay, period) in [("readinessProbe", 5, 10), ("livenessProbe", 15, 20)] {
        assert_eq!(container[probe]["initialDelaySeconds"], json!(delay), "{probe}");
        assert_eq!(container[probe]["periodSeconds"], json!(period), "{probe}");
    }
}

/// The settings of `redis.conf` as arguments, except the address.
fn settings() -> Vec<String> {
    let text = fs::read_to_string(root().join("redis/redis.conf")).unwrap();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let elsewhere = |line: &&str| !line.starts_with("bind ") && !line.starts_with("port ");
    let setting = |line: &str| {
        let (name, value) = line.split_once(' ').unwrap();
        [format!("--{name}"), value.trim_matches('"').to_owned()]
    };
    lines.filter(elsewhere).flat_map(setting).collect()
}

#[tokio::test]
async fn a_server_with_the_shipped_redis_conf_starts_without_warnings() {
    let settings = settings();
    let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
    for kind in KINDS {
        let server = Server::start_with(kind, &settings);
        let store = RedisStore::connect(&server.url()).await.unwrap();
        assert_eq!(store.warnings(), [""; 0], "{kind:?}");
        let mut connection = server.connection();
        let mut setting = |name: &str| -> String {
            let pair: Vec<String> = redis::cmd("CONFIG").arg("GET").arg(name).query(&mut connection).unwrap();
            pair[1].clone()
        };
        let expected =
            [("maxmemory", "268435456"), ("tcp-backlog", "511"), ("timeout", "0"), ("appendonly", "no"), ("save", "")];
        for (name, value) in expected {
            assert_eq!(setting(name), value, "{kind:?}: {name}");
        }
    }
}

#[test]
fn the_shipped_gateway_rules_are_valid() {
    let file = load_and_lint(root().join("gateway/rules.yaml")).unwrap();
    assert_eq!(file.report().to_string(), "", "without a warning");
}
