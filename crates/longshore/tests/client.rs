//! The client commands: beside the real kubectl, and as the tour uses them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall stop")]

mod common;

use std::path::PathBuf;
use std::process::{Command, Output};

use common::*;
use longshore_testing::{Need, need};

const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: alpha, labels: {app: web, tier: one}, annotations: {note: x<y>&z}}
data: {k: v, other: w}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: beta, labels: {app: db}}
data: {k: '10'}
---
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: host, command: [sleep, '1'], ports: [{containerPort: 80}, {containerPort: 8080, name: alt}]}
  - {name: side, image: host, command: [sleep, '1']}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: slow}
provisioner: demo.example.com
";

/// Command lines that both tools get, one after the other, each on a server of its own. Words are separated by spaces;
/// `_` stands for a space inside a word.
const LINES: &[&str] = &[
    "apply -f objects.yaml",
    "apply -f objects.yaml",
    "apply -f objects.yaml --dry-run=server",
    "apply -f objects.yaml --dry-run=client",
    "get cm",
    "get cm,pods",
    "get pod/web cm/alpha",
    "get pod/web",
    "get pods,sc -l app=db",
    "get cm alpha nope",
    "get cm nope --ignore-not-found",
    "get nosuchkind",
    "get pvc",
    "get pvc -o json",
    "get pvc -o name",
    "get cm,sc -A -o name",
    "get cm -A",
    "get cm -o wide --show-labels",
    "get cm -L app,tier --no-headers",
    "get cm -L tier --show-labels -A",
    "get cm --field-selector metadata.name=beta -o name",
    "get cm --sort-by=.data.k",
    "get cm --sort-by={.metadata.name} -o name",
    "get cm -o custom-columns=N:.metadata.name,LABELS:.metadata.labels,X:.nope,K:.data.k",
    "get cm -o custom-columns=A:.data.k --no-headers",
    "get cm -o custom-columns-file=columns.txt",
    "get cm -o jsonpath-as-json={.items[*].metadata.name}",
    "get cm alpha -o json",
    "get cm alpha -o yaml",
    "get pod web -o yaml",
    "get cm,pod -l app=web -o json",
    "get cm -o jsonpath={.items[*].metadata.name}",
    "get cm -o jsonpath={range_.items[*]}{.metadata.name}{\"\\t\"}{.data.k}{\"\\n\"}{end}",
    "get cm -o jsonpath={.items[?(@.metadata.labels.app==\"db\")].metadata.name}",
    "get cm -o jsonpath-file=template.txt",
    "get pod web -o jsonpath={.spec.containers[*].ports[*].containerPort}",
    "get pod web -o jsonpath={.spec.containers[5].name}",
    "get pod web -o jsonpath={.spec.containers[1:].name}{.metadata['name','namespace']}",
    "get pod web -o jsonpath={.metadata.labels}{.spec.containers[0].ports}",
    "label cm alpha app=x",
    "label cm alpha app=x --overwrite",
    "label cm alpha app=x",
    "label cm alpha tier-",
    "label cm alpha tier-",
    "label cm alpha --list",
    "label cm --all z=1",
    "label cm -l z=1 y=2 --dry-run=client",
    "annotate cm alpha x=y",
    "annotate cm alpha x=z",
    "annotate cm/alpha cm/beta x-",
    "patch cm alpha -p {\"data\":{\"q\":\"1\"}}",
    "patch cm alpha -p {\"data\":{\"q\":\"1\"}}",
    "patch cm alpha --type=json -p [{\"op\":\"remove\",\"path\":\"/data/q\"}]",
    "patch cm alpha --type merge -p data:_{q:_'5'}",
    "patch cm/alpha --type merge --patch-file patch.yaml --dry-run=server -o jsonpath={.data.q}",
    "patch pod web -p {\"spec\":{\"containers\":[{\"name\":\"side\",\"image\":\"other\"}]}}",
    "get pod web -o jsonpath={.spec.containers[*].image}",
    "wait cm/alpha --for=jsonpath={.data.q}=5",
    "wait cm/alpha --for=jsonpath={.data.q}",
    "wait cm/alpha --for=jsonpath={.data.q}=6 --timeout=1s",
    "wait pod/web --for=condition=Ready --timeout=1s",
    "wait pod -l app=nope --for=condition=Ready --timeout=1s",
    "wait pod/nope --for=condition=Ready --timeout=1s",
    "wait pod/nope --for=delete --timeout=1s",
    "wait pod/web cm/alpha --for=create --timeout=1s",
    "wait cm --all --for=create --timeout=1s",
    "events",
    "events --for pod/web",
    "apply -f one.yaml --server-side",
    "apply -f one.yaml --server-side --dry-run=server",
    "create -f one.yaml",
    "create -f one.yaml --dry-run=client",
    "delete -f one.yaml --dry-run=client",
    "delete -f one.yaml --dry-run=server",
    "delete -f one.yaml",
    "create -f one.yaml -o name",
    "delete cm gamma -o name",
    "apply -f dir",
    "apply -R -f dir",
    "apply -f dir -f one.yaml -o name",
    "delete -R -f dir",
    "delete cm -l app=nope",
    "delete cm nope",
    "delete cm nope --ignore-not-found",
    "delete pod/web cm/beta --dry-run=client",
    "delete pod web --force",
    "delete cm alpha --now",
    "delete cm alpha --all",
    "delete cm",
    "delete cm beta --cascade=orphan",
    "delete pods --all",
    "delete sc --all",
    "get cm,pods,sc -o name",
];

/// What differs between two servers and two moments is made alike.
fn normalised(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().map(|line| format!("{}\n", normal_line(line))).collect()
}

fn normal_line(line: &str) -> String {
    for key in ["uid", "resourceVersion", "creationTimestamp"] {
        for mark in [format!("\"{key}\": "), format!(" {key}: ")] {
            if let Some(at) =
                line.find(&mark).filter(|_| !line.contains("\"resourceVersion\": \"\""))
            {
                return format!("{}{mark}…", &line[..at]);
            }
        }
    }
    let mut out = String::new();
    let mut rest = line.trim_end();
    while let Some(start) = rest.find(|c: char| !c.is_whitespace()) {
        let end = rest[start..].find(char::is_whitespace).map_or(rest.len(), |len| start + len);
        let (space, word) = (&rest[..start], &rest[start..end]);
        let is_age = word.len() > 1
            && word.strip_suffix('s').is_some_and(|age| age.chars().all(|c| c.is_ascii_digit()));
        // The column is three wide, whatever the age.
        let was_age = out.ends_with("AGE");
        out += if was_age { "   " } else { space };
        out += if is_age { "AGE" } else { word };
        rest = &rest[end..];
    }
    out
}

#[test]
fn the_same_lines_give_the_same_output_as_kubectl() {
    if !need("client", &[Need::Tool("kubectl")]) {
        return;
    }
    let home = Home::new("client");
    let theirs = Instance::start(&home, "theirs", &["apiserver"]);
    let ours = Instance::start(&home, "ours", &["apiserver"]);
    let write = |name: &str, text: &str| {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: gamma}\ndata: {a: b}\n";
    write("objects.yaml", OBJECTS);
    write("one.yaml", map);
    write("patch.yaml", "data: {q: '6'}\n");
    write("columns.txt", "NAME KEY\nmetadata.name data.k\n");
    write("template.txt", "{range .items[*]}{.kind} {end}");
    write("dir/b.yaml", &map.replace("gamma", "b"));
    write("dir/sub/c.yml", &map.replace("gamma", "c"));
    write("dir/a.json", r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}"#);
    write("dir/readme.txt", "nothing");
    let (mut different, mut silent) = (Vec::new(), 0);
    for line in LINES {
        let words: Vec<String> = line.split(' ').map(|word| word.replace('_', " ")).collect();
        let run = |program: &str, instance: &Instance| {
            Command::new(program)
                .args(&words)
                .env("KUBECONFIG", &instance.kubeconfig)
                .env("HOME", home.path())
                .current_dir(home.path())
                .output()
                .unwrap()
        };
        let kubectl = run("kubectl", &theirs);
        let longshore = run(env!("CARGO_BIN_EXE_longshore"), &ours);
        silent += usize::from(kubectl.stdout.is_empty());
        let same_output = normalised(&kubectl) == normalised(&longshore);
        let same_end = kubectl.status.success() == longshore.status.success();
        if !same_output || !same_end {
            different.push(format!(
                "{line}\n--- kubectl ({})\n{}--- longshore ({})\n{}",
                kubectl.status,
                text(&kubectl),
                longshore.status,
                text(&longshore)
            ));
        }
    }
    assert!(silent < LINES.len() / 3, "kubectl said nothing {silent} times: is it the real one?");
    assert!(different.is_empty(), "{} lines differ:\n{}", different.len(), different.join("\n"));
}

/// The tour of README without kubectl.
#[test]
fn the_tour_needs_no_kubectl() {
    if !can_run("tour") {
        return;
    }
    let home = Home::new("tour");
    let up = Instance::up(&home, "data");
    let file = home.path().join("claim.yaml");
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let part = |name: &str| {
        let (_, rest) = readme.split_once(&format!("```yaml file={name}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    let both = format!("{}---\n{}", part("claim.yaml"), part("pod.yaml"));
    std::fs::write(&file, both).unwrap();
    let file = file.to_str().unwrap();
    let ok = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let done = up.cli(&words);
        assert!(done.status.success(), "longshore {line}: {}", text(&done));
        text(&done)
    };
    assert!(ok("get sc").contains("longshore-local (default)"));
    let apply = format!("apply -f {file}");
    assert_eq!(ok(&apply), "persistentvolumeclaim/data created\npod/web created\n");
    let ready = "wait --for=condition=Ready pod/web --timeout=60s";
    assert_eq!(ok(ready), "pod/web condition met\n");
    let all = ok("get pods,pvc,pv");
    assert!(
        all.contains("pod/web   1/1     Running") && all.contains("persistentvolume/pvc-"),
        "{all}"
    );
    let visits = |log: &str| log.lines().filter(|line| !line.contains("/data")).count();
    eventually("the first visit is written", || visits(&ok("logs web")) == 1);
    let status = ok("status");
    assert!(status.contains("1 claim, 1 pod\n"), "{status}");
    assert!(status.contains("local.csi.longshore.dev") && status.contains("POOL"), "{status}");
    assert_eq!(ok("delete pod web"), "pod \"web\" deleted\n");
    assert_eq!(ok(&apply), "persistentvolumeclaim/data unchanged\npod/web created\n");
    assert_eq!(ok(ready), "pod/web condition met\n");
    eventually("the second visit is written", || visits(&ok("logs web")) == 2);
    assert_eq!(
        ok(&format!("delete -f {file}")),
        "persistentvolumeclaim \"data\" deleted\npod \"web\" deleted\n"
    );
    eventually("the volume is gone", || ok("get pods,pvc,pv") == "No resources found\n");
    up.stop_without_a_trace(&home);
}

/// Its later parts as well: every line that README has for kubectl, with the program in its place.
#[test]
fn every_line_of_the_tour_works_without_kubectl() {
    if !can_run("whole-tour") {
        return;
    }
    let home = Home::new("whole-tour");
    let up = Instance::up(&home, "data");
    let readme =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    for block in readme.split("```yaml file=").skip(1) {
        let (name, rest) = block.split_once('\n').unwrap();
        std::fs::write(home.path().join(name), rest.split_once("```").unwrap().0).unwrap();
    }
    let run = |line: &str| {
        let binary = env!("CARGO_BIN_EXE_longshore");
        let done = Command::new("bash")
            .args(["-c", &format!("kubectl() {{ {binary} \"$@\"; }}; {line}")])
            .env("KUBECONFIG", &up.kubeconfig)
            .current_dir(home.path())
            .output()
            .unwrap();
        (done.status.success(), text(&done))
    };
    let lines = readme.lines().filter_map(|line| line.strip_prefix("# "));
    let lines: Vec<&str> = lines.filter(|line| line.starts_with("kubectl ")).collect();
    assert!(lines.len() > 20, "{lines:#?}");
    let looks = |line: &str| {
        ["kubectl get", "kubectl logs", "kubectl exec web -- ls"]
            .iter()
            .any(|one| line.starts_with(one))
    };
    for line in &lines {
        let waits = line.starts_with("kubectl wait");
        let line = if waits { format!("{line} --timeout=60s") } else { (*line).to_owned() };
        if looks(&line) {
            // What a pod writes may come a moment later.
            eventually(&line, || run(&line).0);
        } else {
            let (done, said) = run(&line);
            assert!(done, "{line}: {said}");
        }
    }
    eventually("nothing is left", || run("kubectl get pods,pvc,pv").1 == "No resources found\n");
    up.stop_without_a_trace(&home);
}

/// What bash offers after a line.
fn offered(home: &Home, kubeconfig: &str, words: &str) -> Vec<String> {
    let script = completions(home, "bash");
    let binary = env!("CARGO_BIN_EXE_longshore");
    let line = format!(
        "source {}; COMP_WORDS=({binary} {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); \
         _longshore_words {binary} \"${{COMP_WORDS[COMP_CWORD]}}\" \"${{COMP_WORDS[COMP_CWORD - 1]}}\"; \
         printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    let done = Command::new("bash")
        .args(["--norc", "-c", &line])
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{words}");
    String::from_utf8_lossy(&done.stdout).lines().map(str::to_owned).collect()
}

/// A directory for PATH in which the program has its own name, as completions call it.
fn named(home: &Home) -> String {
    let dir = home.path().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    let link = dir.join("longshore");
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_longshore"), &link).unwrap();
    }
    format!("{}:{}", dir.display(), std::env::var("PATH").unwrap())
}

/// The completions of a shell, in a file.
fn completions(home: &Home, shell: &str) -> PathBuf {
    let file = home.path().join(format!("completions.{shell}"));
    let binary = env!("CARGO_BIN_EXE_longshore");
    let made = Command::new(binary).args(["completions", shell]).output().unwrap();
    std::fs::write(&file, made.stdout).unwrap();
    file
}

/// What fish offers after a line.
fn offered_by_fish(home: &Home, kubeconfig: &str, words: &str) -> Vec<String> {
    let script = completions(home, "fish");
    let done = Command::new("fish")
        .args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"])
        .args([script.to_str().unwrap(), &format!("longshore {words}")])
        .env("PATH", named(home))
        .env("HOME", home.path())
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{words}");
    let lines = String::from_utf8_lossy(&done.stdout).into_owned();
    lines.lines().filter_map(|line| line.split('\t').next()).map(str::to_owned).collect()
}

/// Types a line and a tab into a zsh with a terminal of its own, and prints what then stands there.
const TYPE_INTO_ZSH: &str = r#"zmodload zsh/zpty
zpty shell zsh -f -i
say() { zpty -w shell "$1" }
say 'PS1=; PS2=; unsetopt prompt_cr prompt_sp zle_bracketed_paste; bindkey -e'
say 'autoload -U compinit && compinit -u -D'
say 'stands() { print -r -- "<<$BUFFER>>"; BUFFER=; zle accept-line }; zle -N stands; bindkey "^X" stands'
say "source $1; print rea''dy"
read_until() { local all part; while zpty -r shell part; do all+=$part; [[ $all == *$1* ]] && break; done; REPLY=$all }
read_until ready
zpty -w -n shell "longshore $2"$'\t'$'\x18'
read_until '>>'
print -r -- "${${REPLY##*<<}%%>>*}"
zpty -d shell
"#;

/// What a line has become in zsh after a tab.
fn completed_by_zsh(home: &Home, kubeconfig: &str, words: &str) -> String {
    let script = completions(home, "zsh");
    let done = Command::new("timeout")
        .args(["30", "zsh", "-f", "-c", TYPE_INTO_ZSH, "type"])
        .args([script.to_str().unwrap(), words])
        .env("PATH", named(home))
        .env("HOME", home.path())
        .env("TERM", "dumb")
        .env("KUBECONFIG", kubeconfig)
        .output()
        .unwrap();
    String::from_utf8_lossy(&done.stdout).trim().to_owned()
}

#[test]
fn fish_and_zsh_complete_kinds_names_and_namespaces() {
    if !need("completions of fish and zsh", &[Need::Tool("fish"), Need::Tool("zsh")]) {
        return;
    }
    let home = Home::new("shells");
    let api = Instance::start(&home, "data", &["apiserver"]);
    api.apply(OBJECTS);
    let kubeconfig = api.kubeconfig.to_str().unwrap().to_owned();
    for (words, expected) in [
        ("get persistentvolumec", "persistentvolumeclaims"),
        ("get cm a", "alpha"),
        ("delete cm alpha b", "beta"),
        ("describe pod/", "pod/web"),
        ("get cm -n kube-s", "kube-system"),
        ("get --show-l", "--show-labels"),
    ] {
        let offered = offered_by_fish(&home, &kubeconfig, words);
        assert_eq!(offered, [expected], "fish: {words}");
        let (before, _) = words.rsplit_once(' ').unwrap();
        let line = completed_by_zsh(&home, &kubeconfig, words);
        assert_eq!(line, format!("longshore {before} {expected}"), "zsh: {words}");
    }
}

#[test]
fn bash_completes_kinds_names_and_namespaces() {
    if !need("completions", &[Need::Tool("bash")]) {
        return;
    }
    let home = Home::new("completions");
    let api = Instance::start(&home, "data", &["apiserver"]);
    api.apply(OBJECTS);
    let kubeconfig = api.kubeconfig.to_str().unwrap().to_owned();
    for (words, expected) in [
        ("get persistentvolumec", vec!["persistentvolumeclaims"]),
        ("get cm a", vec!["alpha"]),
        ("delete cm alpha b", vec!["beta"]),
        ("describe pod/", vec!["pod/web"]),
        ("wait --for=delete pod/w", vec!["pod/web"]),
        ("logs ''", vec!["web"]),
        ("get cm -n kube-s", vec!["kube-system"]),
    ] {
        assert_eq!(offered(&home, &kubeconfig, words), expected, "{words}");
    }
    assert!(offered(&home, &kubeconfig, "get --show-l").contains(&"--show-labels".to_owned()));
    assert!(offered(&home, &kubeconfig, "patc").contains(&"patch".to_owned()));
    // Nobody answers: flags are still completed, and nothing is said.
    api.kill();
    assert!(offered(&home, &kubeconfig, "get --show-l").contains(&"--show-labels".to_owned()));
    assert!(!offered(&home, &kubeconfig, "get cm a").contains(&"alpha".to_owned()));
}
