//! Starting children from a thread that lives as long as the process.
//!
//! The parent-death signal follows the *thread* that started the child. Tests run in threads of
//! their own that end early, so all children come from one thread that never does.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};
use std::sync::{OnceLock, mpsc};
use std::{io, thread};

type Reply = mpsc::Sender<io::Result<Child>>;

static KEEPER: OnceLock<mpsc::Sender<(Command, Reply)>> = OnceLock::new();

/// Starts a child that gets SIGKILL when this process ends, however it ends.
pub(crate) fn spawn(mut command: Command) -> io::Result<Child> {
    end_with_parent(&mut command);
    let keeper = KEEPER.get_or_init(|| {
        let (sender, jobs) = mpsc::channel::<(Command, Reply)>();
        thread::spawn(move || {
            for (mut command, reply) in jobs {
                // The send fails only if the thread that asked is gone.
                let _ = reply.send(command.spawn());
            }
        });
        sender
    });
    let (reply, child) = mpsc::channel();
    let gone = |_| io::Error::other("the thread that starts programs has ended");
    keeper.send((command, reply)).map_err(|_| io::Error::other("cannot ask for a program"))?;
    child.recv().map_err(gone)?
}

#[expect(unsafe_code, reason = "a pre-exec hook is the only way to set the parent-death signal")]
fn end_with_parent(command: &mut Command) {
    let parent = std::process::id();
    // SAFETY: the closure only makes system calls, which is allowed between fork and exec.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            // The parent may have ended before the signal was set.
            let now = rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get());
            if now != i32::try_from(parent).ok() {
                return Err(io::Error::other("the parent has ended"));
            }
            Ok(())
        });
    }
}
