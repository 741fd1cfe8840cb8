//! `cargo xtask bench node`: a pod with a new claim, from the request until it runs, and from its
//! deletion until its volume is gone; one at a time and many together. In the embedded mode, and with a
//! real kubelet and control plane beside it.

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use longshore_real_kube::{
    Cluster, Controllers, Options, drivers, node,
    tools::{self, Tool},
};
use serde_json::{Value, json};

use super::{
    burst::{server, with_instance},
    follow::Seen,
    http::Server,
    kubeconfig::Kubeconfig,
    load::{self, NAMESPACE},
    release_binary, report,
};

/// What one claim asks for: the smallest ext4 that people use.
const SIZE: &str = "10Mi";
/// Ends when it is told to. One that does not gets two seconds, as from a kubelet.
const SERVE: &str = "trap 'exit 0' TERM; sleep 1000 & wait";
/// Pods before the measured ones.
const WARM_UP: usize = 2;
/// The real stack: a kubelet with everything that it needs.
const TOOLS: [Tool; 8] = [
    Tool::Etcd,
    Tool::KubeApiserver,
    Tool::KubeControllerManager,
    Tool::KubeScheduler,
    Tool::Kubelet,
    Tool::Kubectl,
    Tool::Hostpath,
    Tool::CsiProvisioner,
];

/// Where pods run.
struct Place<'a> {
    server: &'a Server,
    /// What a container's programs come from.
    image: &'static str,
    class: &'a str,
    /// How the table calls it.
    title: &'static str,
}

/// What was asked for.
struct Args {
    pods: usize,
    together: usize,
    /// Leave the kubelet out, to compare two binaries of ours.
    ours_only: bool,
    json: Option<PathBuf>,
}

/// Pods of one class that were made together.
#[derive(Debug, serde::Serialize)]
struct Turn {
    title: &'static str,
    /// Per pod: from the request of its claim until it was seen running.
    running: Vec<f64>,
    /// From the first request until the last pod was seen running.
    all_running: f64,
    /// From the first deletion until no volume is left.
    gone: f64,
}

/// Runs it.
pub fn bench(args: &[String]) -> Result<()> {
    let args = Args::read(args)?;
    let binary = release_binary()?;
    let mut turns = with_instance(&binary, &std::env::temp_dir(), &[], |_, data| {
        let server = server(data)?;
        load::prepare(&server, "unused.example.com")?;
        let mut turns = Vec::new();
        for (class, title) in [
            ("longshore-local", "longshore, without attaching"),
            ("longshore-shared", "longshore, with attaching"),
        ] {
            turns.extend(turns_at(&Place { server: &server, image: "host", class, title }, &args)?);
        }
        Ok(turns)
    })?;
    let missing = TOOLS.into_iter().find(|tool| tools::path(*tool).is_err());
    match missing {
        _ if args.ours_only => {}
        Some(tool) => println!("the kubelet is not measured: there is no {tool:?}"),
        None if !node::possible() => println!("the kubelet is not measured: it cannot run here"),
        None => turns.extend(real(&args)?),
    }
    println!("\n{}", table(&turns, args.pods, args.together));
    if let Some(file) = &args.json {
        std::fs::write(file, serde_json::to_vec_pretty(&turns)?)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    Ok(())
}

/// The same with the real programs: the reference driver, whose volumes are directories, with the
/// official provisioner; the attacher is ours, for the official one cannot be had.
fn real(args: &Args) -> Result<Vec<Turn>> {
    let mut cluster = Cluster::start(&Options {
        controllers: Controllers::Volumes,
        scheduler: true,
        node: true,
        interrupt: Some(crate::interrupt::flag()?),
        ..Options::default()
    })?;
    let server = Server::new(&Kubeconfig::read(cluster.kubeconfig())?)?;
    load::prepare(&server, "unused.example.com")?;
    let alone = drivers::hostpath(&mut cluster)?;
    let attached = drivers::hostpath_attached(&mut cluster)?;
    let mut turns = Vec::new();
    for (class, title) in
        [(&alone, "kubelet, without attaching"), (&attached, "kubelet, with attaching")]
    {
        let place = Place { server: &server, image: node::IMAGE, class, title };
        turns.extend(turns_at(&place, args)?);
    }
    cluster.stop()?;
    Ok(turns)
}

/// One pod after the other, and then many together.
fn turns_at(place: &Place<'_>, args: &Args) -> Result<Vec<Turn>> {
    let slug = place.title.replace([',', ' '], "-").replace("--", "-");
    for at in 0..WARM_UP {
        turn(place, &format!("warm-{slug}-{at}"), 1)?;
    }
    let mut turns = Vec::new();
    for at in 0..args.pods {
        turns.push(turn(place, &format!("one-{slug}-{at}"), 1)?);
    }
    let together = turn(place, &format!("many-{slug}"), args.together)?;
    eprintln!("{}: {} run after {:.2} s", place.title, args.together, together.all_running);
    turns.push(together);
    Ok(turns)
}

impl Args {
    fn read(args: &[String]) -> Result<Self> {
        let mut read = Self { pods: 20, together: 30, ours_only: false, json: None };
        let mut args = args.iter();
        while let Some(flag) = args.next() {
            let value = args.next().with_context(|| format!("{flag} needs a value"))?;
            let number = || value.parse().with_context(|| format!("{flag} {value}: not a number"));
            match flag.as_str() {
                "--pods" => read.pods = number()?,
                "--together" => read.together = number()?,
                "--only" => {
                    ensure!(value == "ours", "--only {value}: there is ours");
                    read.ours_only = true;
                }
                "--json" => read.json = Some(value.into()),
                _ => bail!(
                    "bench node has no flag {flag}; it takes --pods, --together, --only, --json"
                ),
            }
        }
        ensure!(read.pods > 0 && read.together > 1, "--pods is at least 1 and --together 2");
        Ok(read)
    }
}

/// Makes pods with a claim each, waits until they run, and deletes all of it.
fn turn(place: &Place<'_>, prefix: &str, count: usize) -> Result<Turn> {
    let Place { server, image, class, title } = place;
    let names: Vec<String> = (0..count).map(|at| format!("{prefix}-{at}")).collect();
    let seen = Seen::start_with_pods(server)?;
    let base = format!("/api/v1/namespaces/{NAMESPACE}");
    let first = Instant::now();
    let sent = load::send_all(server, &names, |connection, name| {
        let claims = format!("{base}/persistentvolumeclaims");
        connection.call("POST", &claims, Some(&claim(name, class)))?;
        connection.call("POST", &format!("{base}/pods"), Some(&pod(name, image))).map(drop)
    })?;
    let state = seen.wait(&format!("{count} pods to run"), |state| {
        names.iter().all(|name| state.running.contains_key(name))
    })?;
    let (mut running, mut volumes, mut last) = (Vec::new(), Vec::new(), first);
    for (name, sent) in names.iter().zip(sent) {
        let at = *state.running.get(name).context("a pod that runs")?;
        running.push((at - sent).as_secs_f64());
        volumes.push(state.bound.get(name).context("its claim is Bound")?.1.clone());
        last = last.max(at);
    }
    drop(state);
    running.sort_by(f64::total_cmp);
    // The shell is the container's first process, which no signal ends before its trap is set.
    std::thread::sleep(Duration::from_millis(200));
    let deleted = Instant::now();
    load::send_all(server, &names, |connection, name| {
        let pod = format!("{base}/pods/{name}?gracePeriodSeconds=0");
        connection.call("DELETE", &pod, None)?;
        let claim = format!("{base}/persistentvolumeclaims/{name}");
        connection.call("DELETE", &claim, None).map(drop)
    })?;
    let state = seen.wait(&format!("{count} volumes to be gone"), |state| {
        volumes.iter().all(|name| state.gone.contains_key(name))
    })?;
    let gone = volumes.iter().filter_map(|name| state.gone.get(name)).max().copied();
    let gone = gone.context("a volume that is gone")?.saturating_duration_since(deleted);
    drop(state);
    // What the node still tidies up does not count with the next one.
    std::thread::sleep(Duration::from_millis(200));
    let all_running = (last - first).as_secs_f64();
    Ok(Turn { title, running, all_running, gone: gone.as_secs_f64() })
}

fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": {"requests": {"storage": SIZE}},
        },
    })
}

fn pod(name: &str, image: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "automountServiceAccountToken": false,
            "tolerations": [{"operator": "Exists"}],
            "containers": [{
                "name": "main", "image": image, "imagePullPolicy": "Never", "command": ["sh", "-c", SERVE],
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": name}}],
        },
    })
}

fn table(turns: &[Turn], pods: usize, together: usize) -> String {
    let mut lines = vec![vec![
        "a pod with a new claim of 10 MiB, ext4".to_owned(),
        format!("running, median of {pods}, ms"),
        "slowest, ms".to_owned(),
        "gone, median, ms".to_owned(),
        format!("{together} together running, s"),
        format!("{together} together gone, s"),
    ]];
    let mut titles: Vec<&str> = turns.iter().map(|one| one.title).collect();
    titles.dedup();
    for title in titles {
        let of = |alone: bool| {
            turns.iter().filter(move |one| one.title == title && (one.running.len() == 1) == alone)
        };
        let alone: Vec<f64> = of(true).map(|one| one.all_running * 1e3).collect();
        let slowest = alone.iter().copied().fold(0.0, f64::max);
        let gone = of(true).map(|one| one.gone * 1e3).collect();
        let many = |value: fn(&Turn) -> f64| report::median(of(false).map(value).collect());
        lines.push(vec![
            title.to_owned(),
            format!("{:.0}", report::median(alone)),
            format!("{slowest:.0}"),
            format!("{:.0}", report::median(gone)),
            format!("{:.2}", many(|one| one.all_running)),
            format!("{:.2}", many(|one| one.gone)),
        ]);
    }
    report::markdown(&lines)
}
