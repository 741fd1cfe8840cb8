//! A machine of its own on which the commands of one page are run.
//!
//! It is a shell in new process, mount, network and host name namespaces: paths, ports and names are those of the
//! page, whatever else runs on the machine, and nothing of it outlives the shell.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    os::unix::fs::MetadataExt as _,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use crate::{
    common::{Home, binary, images_below},
    compare::same,
    page::{Block, Step, steps},
};

/// How long a program may take to say what the page says. Long, because machines can be busy.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(100);

/// What ends the output of a command.
const END: &str = "-- longshore docs: end of command";

/// Commands that change nothing. People look again when something is still under way, so the runner does, too.
const LOOKING: [&str; 8] = [
    "kubectl get ",
    "kubectl describe ",
    "kubectl logs ",
    "kubectl events",
    "longshore get ",
    "longshore describe ",
    "longshore logs ",
    "ls ",
];

/// The machine.
pub struct Session {
    shell: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    /// Programs that were started in the background, the last one last.
    programs: Vec<Program>,
    home: Home,
}

struct Program {
    command: String,
    pid: u32,
    log: String,
    /// How much of the log was read when the last step ended.
    read: usize,
}

impl Session {
    /// Starts a machine on which `longshore` and the files of the repository are to be found.
    pub fn start(root: &Path, name: &str) -> Self {
        let home = Home::new(&format!("docs-{name}"));
        for dir in ["lib", "srv", "root", "bin", "work", "logs"] {
            fs::create_dir(home.path().join(dir)).unwrap();
        }
        let link = |target: &Path, name: &str| {
            std::os::unix::fs::symlink(target, home.path().join(name)).unwrap();
        };
        link(&binary(), "bin/longshore");
        link(&root.join("deploy"), "work/deploy");
        // A page may depend on a clone beside the directory it works in.
        link(root, "longshore");
        let mut shell = Command::new("unshare")
            .args(["--mount", "--net", "--uts", "--pid", "--fork", "--kill-child", "bash"])
            // Dependencies that were built for the tests need not be built again.
            .env("CARGO_TARGET_DIR", binary().ancestors().nth(2).unwrap())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .unwrap();
        let input = shell.stdin.take().unwrap();
        let output = BufReader::new(shell.stdout.take().unwrap());
        let mut session = Self { shell, input, output, programs: Vec::new(), home };
        let script = root.join("crates/longshore/tests/docs/machine.sh");
        let home = session.home.path().display().to_string();
        let (said, code) = session.shell(&format!(". {} {home}", script.display()));
        assert_eq!(code, 0, "the machine does not start: {said}");
        session
    }

    /// Runs shell text; returns what it printed and its exit code.
    fn shell(&mut self, text: &str) -> (String, i32) {
        writeln!(self.input, "{{ {text}\n}} 2>&1 </dev/null; printf '\\n%s %s\\n' '{END}' $?")
            .unwrap();
        let mut said = String::new();
        loop {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).unwrap_or_default();
            assert!(read > 0, "the shell is gone after `{text}`: {said}");
            if let Some(code) = line.strip_prefix(END) {
                // The line break before the end is ours.
                let said = said.strip_suffix('\n').unwrap_or(&said).to_owned();
                return (said, code.trim().parse().unwrap());
            }
            said += &line;
        }
    }

    /// Puts a file of the page where its commands find it.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.home.path().join("work").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Starts an instance for a page that does not start one itself.
    pub fn up(&mut self) {
        self.begin("longshore up");
        let ready = ["…", "ready kubeconfig=…"].map(str::to_owned);
        self.await_output(&ready).unwrap_or_else(|seen| panic!("`longshore up` says {seen}"));
        self.shell("export KUBECONFIG=/var/lib/longshore/kubeconfig");
    }

    /// Plays a block; returns how many commands it has.
    pub fn play(&mut self, block: &Block) -> Result<usize, String> {
        let steps = steps(block)?;
        for step in &steps {
            let (line, said, outcome) = match step {
                Step::Command { line, text, output } if block.has("background") => {
                    self.begin(text);
                    (line, output, self.await_output(output))
                }
                Step::Command { line, text, output } => (line, output, self.run(text, output)),
                Step::Interrupt { line, output } => (line, output, self.interrupt(output)),
            };
            outcome.map_err(|seen| {
                let what = match step {
                    Step::Command { text, .. } => text.as_str(),
                    Step::Interrupt { .. } => "^C",
                };
                let said = said.join("\n");
                format!("{}:{line}: `{what}`\nexpected:\n{said}\nseen:\n{seen}", block.page)
            })?;
        }
        Ok(steps.len())
    }

    /// Runs a command; the error is what it printed instead.
    fn run(&mut self, command: &str, said: &[String]) -> Result<(), String> {
        let began = Instant::now();
        let looks = LOOKING.iter().any(|start| command.starts_with(start));
        loop {
            let (seen, code) = self.shell(command);
            // What fails prints something, so the page shows it.
            if same(said, &seen) && (code == 0 || !said.is_empty()) {
                return Ok(());
            }
            if !looks || began.elapsed() > PATIENCE {
                return Err(format!("{seen}(exit code {code}){}", self.logs()));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts a program in the background.
    fn begin(&mut self, command: &str) {
        let log = format!("{}/logs/{}", self.home.path().display(), self.programs.len());
        let (pid, _) =
            self.shell(&format!("exec 3>{log}; {command} >&3 2>&3 & echo $!; exec 3>&-"));
        let pid = pid.trim().parse().unwrap();
        self.programs.push(Program { command: command.to_owned(), pid, log, read: 0 });
    }

    /// Waits until the program that was started last has printed this.
    fn await_output(&mut self, said: &[String]) -> Result<(), String> {
        let began = Instant::now();
        let program = self.programs.last_mut().ok_or("nothing was started")?;
        loop {
            let log = fs::read_to_string(&program.log).unwrap_or_default();
            let seen = log.get(program.read..).unwrap_or_default();
            // What the program prints later is not the page's affair.
            let ends = seen.match_indices('\n').map(|(at, _)| at + 1);
            if let Some(end) = std::iter::once(0).chain(ends).find(|end| same(said, &seen[..*end]))
            {
                program.read += end;
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                return Err(seen.to_owned());
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// Ctrl-C for the program that was started last.
    fn interrupt(&mut self, said: &[String]) -> Result<(), String> {
        let pid = self.programs.last().ok_or("nothing was started")?.pid;
        self.shell(&format!("kill -INT {pid}"));
        let ended = self.ended(pid);
        let outcome = self.await_output(said).and(ended);
        self.programs.pop();
        outcome
    }

    fn ended(&mut self, pid: u32) -> Result<(), String> {
        match self.shell(&format!("wait {pid}")).1 {
            0 => Ok(()),
            code => Err(format!("it ended with exit code {code}{}", self.logs())),
        }
    }

    /// Ends the programs, the last one first; each must end well and leave nothing.
    pub fn stop(&mut self) -> Result<(), String> {
        while let Some(program) = self.programs.last() {
            let (pid, command) = (program.pid, program.command.clone());
            self.shell(&format!("kill -TERM {pid}"));
            self.ended(pid).map_err(|error| format!("`{command}`: {error}"))?;
            self.programs.pop();
        }
        let (left, _) = self.shell("grep -E ' (/var/lib|/srv)/' /proc/self/mounts");
        if left.is_empty() { Ok(()) } else { Err(format!("mounts are left:\n{left}")) }
    }

    /// The ends of the background programs' logs.
    fn logs(&self) -> String {
        let mut all = String::new();
        for program in &self.programs {
            let log = fs::read_to_string(&program.log).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(20)..].join("\n");
            all += &format!("\n-- end of the log of `{}`:\n{end}", program.command);
        }
        all
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Ends pods and mounts in good order, so that no loop device is left.
        for program in self.programs.iter().rev() {
            let pid = program.pid;
            let end = format!("kill -TERM {pid}; timeout 30 tail --pid={pid} -f /dev/null");
            let _ = writeln!(self.input, "{end}");
        }
        let _ = writeln!(self.input, "exit");
        let _ = self.shell.wait();
        detach_loops(self.home.path());
    }
}

/// Detaches loop devices on images below a directory. The mounts of the machine are gone with it, so the kernel no longer
/// knows the images by the names that they have here.
fn detach_loops(dir: &Path) {
    let images: Vec<String> = images_below(dir)
        .iter()
        .filter_map(|image| Some(fs::metadata(image).ok()?.ino().to_string()))
        .collect();
    if images.is_empty() {
        return;
    }
    let list = ["--list", "--noheadings", "--output", "NAME,BACK-INO"];
    let Ok(list) = Command::new("losetup").args(list).output() else { return };
    for line in String::from_utf8_lossy(&list.stdout).lines() {
        if let [device, inode] = line.split_whitespace().collect::<Vec<_>>()[..]
            && images.iter().any(|image| image == inode)
        {
            let _ = Command::new("losetup").args(["--detach", device]).status();
        }
    }
}
