//! Attaching to what runs.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Command;

use super::common::*;
use super::{plain, spawn, start};

/// Says back what it reads.
const PARROT: &str = "echo up; while read line; do echo \"got $line\"; done; echo over; sleep 1000";

// case: workloads/W119
#[test]
fn those_who_are_attached_come_and_go_while_the_container_runs() {
    if !can_kubectl("those_who_are_attached_come_and_go_while_the_container_runs") {
        return;
    }
    let home = Home::new("attach");
    let up = Instance::up(&home, "data");
    let pods = [
        plain("parrot", PARROT, "    stdin: true\n", ""),
        plain("once", PARROT, "    stdin: true\n    stdinOnce: true\n", ""),
    ];
    start(&up, &pods.join("---\n"), &["parrot", "once"]);

    let mut one = spawn(&up, &["attach", "-i", "parrot"]);
    let mut two = spawn(&up, &["attach", "parrot"]);
    let mut heard = [one.stdout.take(), two.stdout.take()].map(|out| BufReader::new(out.unwrap()));
    let mut input = one.stdin.take().unwrap();
    // The second is attached when it hears the first.
    let mut line = String::new();
    let talk = std::thread::spawn(move || {
        while writeln!(input, "hello").and_then(|()| input.flush()).is_ok() {
            std::thread::sleep(std::time::Duration::from_millis(200));
        }
    });
    for reader in &mut heard {
        line.clear();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "got hello\n");
    }
    one.kill().unwrap();
    one.wait().unwrap();
    talk.join().unwrap();
    // The other hears on, and what it hears comes from somebody who writes anew.
    let mut three = spawn(&up, &["attach", "-i", "parrot"]);
    let mut input = three.stdin.take().unwrap();
    writeln!(input, "again").unwrap();
    let again = (&mut heard[1]).lines().map_while(Result::ok).find(|line| line == "got again");
    assert!(again.is_some());
    for mut client in [two, three] {
        client.kill().unwrap();
        client.wait().unwrap();
    }
    eventually("the container goes on", || {
        up.json("pod", "parrot")["status"]["phase"] == "Running"
    });
    assert_eq!(up.json("pod", "parrot")["status"]["containerStatuses"][0]["restartCount"], 0);

    // With stdinOnce the input ends with the first client.
    let mut client = spawn(&up, &["attach", "-i", "once"]);
    let mut input = client.stdin.take().unwrap();
    writeln!(input, "bye").unwrap();
    drop(input);
    eventually("the input ends", || {
        text(&up.kubectl(&["logs", "once"])).contains("got bye\nover\n")
    });
    // The end of the container ends the command.
    let deleted = up.kubectl(&["delete", "pod", "once", "--wait=false"]);
    assert!(deleted.status.success());
    assert!(client.wait().unwrap().success());
    up.stop_without_a_trace(&home);
}

#[test]
fn a_container_with_a_terminal_is_a_shell_to_those_who_attach() {
    if !can_kubectl("a_container_with_a_terminal_is_a_shell_to_those_who_attach") {
        return;
    }
    let home = Home::new("attach-tty");
    let up = Instance::up(&home, "data");
    let tty = "    stdin: true\n    tty: true\n";
    start(&up, &plain("shell", "exec sh", tty, ""), &["shell"]);
    let line = "(sleep 2; echo 'tty; stty size'; sleep 2; echo 'exit 0'; sleep 1) | script -qec 'stty rows 33 cols 111; kubectl attach -it shell' /dev/null";
    let done =
        Command::new("sh").env("KUBECONFIG", &up.kubeconfig).args(["-c", line]).output().unwrap();
    let seen = text(&done);
    assert!(seen.contains("/dev/pts/") && seen.contains("33 111"), "{seen:?}");
    eventually("the log has what the terminal showed", || {
        text(&up.kubectl(&["logs", "shell", "-p"])).contains("33 111")
    });
    up.stop_without_a_trace(&home);
}
