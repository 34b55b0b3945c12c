//! The built-in fuzzer: seeds, then mutations of them, until the time is up.

use std::cell::RefCell;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::Target;
use crate::mutate::mutate;

/// How to run a target.
#[derive(Clone, Debug)]
pub struct Options {
    /// The duration of the run.
    pub time: Duration,
    /// The seed of the mutations. The same seed produces the same inputs, as many as the time allows.
    pub seed: u64,
    /// The folder for an input that fails.
    pub artifacts: PathBuf,
}

/// The outcome of a run.
#[derive(Debug)]
pub enum Outcome {
    /// No input failed.
    Clean {
        /// The number of inputs.
        inputs: u64,
    },
    /// An input failed.
    Broken {
        /// The input.
        file: PathBuf,
        /// The message of the target's panic.
        message: String,
    },
}

/// Runs a target.
///
/// # Errors
/// When the seeds cannot be read, or a failing input cannot be saved.
pub fn run(target: &Target, options: &Options) -> Result<Outcome> {
    let seeds = (target.seeds)().with_context(|| format!("seeds of {}", target.name))?;
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    let watch = Watch::new();
    let until = Instant::now() + options.time;
    let mut inputs = 0;
    for seed in &seeds {
        inputs += 1;
        if let Some(message) = watch.run(target, seed) {
            return broken(target, options, seed, message);
        }
    }
    while Instant::now() < until {
        // The clock is not read for each input.
        for _ in 0..64 {
            let mut input = match seeds.len() {
                0 => Vec::new(),
                n => seeds[rng.random_range(0..n)].clone(),
            };
            mutate(&mut input, &seeds, &mut rng);
            inputs += 1;
            if let Some(message) = watch.run(target, &input) {
                return broken(target, options, &input, message);
            }
        }
    }
    Ok(Outcome::Clean { inputs })
}

fn broken(target: &Target, options: &Options, input: &[u8], message: String) -> Result<Outcome> {
    fs::create_dir_all(&options.artifacts)
        .with_context(|| options.artifacts.display().to_string())?;
    let file = options.artifacts.join(format!("{}-{}", target.name, options.seed));
    fs::write(&file, input).with_context(|| file.display().to_string())?;
    Ok(Outcome::Broken { file, message })
}

/// Catches the panics of this thread and keeps their messages. Several threads may each have one.
struct Watch;

thread_local! {
    /// The message of the last panic of a watched thread; none for other threads.
    static SAID: RefCell<Option<String>> = const { RefCell::new(None) };
}

impl Watch {
    fn new() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                let kept = SAID.with_borrow_mut(|said| match said {
                    Some(said) => {
                        *said = info.to_string();
                        true
                    }
                    None => false,
                });
                if !kept {
                    before(info);
                }
            }));
        });
        SAID.set(Some(String::new()));
        Self
    }

    /// Runs the target on an input. Returns the message if it panicked.
    fn run(&self, target: &Target, input: &[u8]) -> Option<String> {
        let result = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
        let said = || SAID.with_borrow(|said| said.clone().unwrap_or_default().replace('\n', " "));
        result.is_err().then(said)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        SAID.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::{Options, Outcome, run};
    use crate::Target;
    use std::time::Duration;

    #[test]
    fn failing_fuzz_input_is_found_and_saved() {
        let target = Target {
            name: "broken",
            about: "fails when the first byte is 7",
            run: |data| assert_ne!(data.first(), Some(&7)),
            seeds: || Ok(vec![vec![0; 4]]),
        };
        let dir = rdmux_testing::temp_dir();
        let artifacts = dir.path().join("artifacts");
        let options = Options { time: Duration::from_secs(60), seed: 3, artifacts };
        let outcome = run(&target, &options).expect("runs");
        let Outcome::Broken { file, .. } = outcome else { panic!("not found") };
        assert_eq!(std::fs::read(file).expect("kept")[0], 7);
    }

    #[test]
    fn targets_on_several_threads_each_say_what_failed_of_them() {
        let target = |name, run| Target { name, about: "", run, seeds: || Ok(vec![vec![0; 4]]) };
        let targets =
            [target("one", |_| panic!("of the first")), target("two", |_| panic!("of the second"))];
        let dir = rdmux_testing::temp_dir();
        let options = Options { time: Duration::ZERO, seed: 1, artifacts: dir.path().to_owned() };
        for _ in 0..100 {
            let said = std::thread::scope(|s| {
                let runs = targets.each_ref().map(|t| s.spawn(|| run(t, &options)));
                runs.map(|run| match run.join().expect("no panic").expect("runs") {
                    Outcome::Broken { message, .. } => message,
                    Outcome::Clean { .. } => panic!("not found"),
                })
            });
            assert!(said[0].contains("first") && said[1].contains("second"), "{said:?}");
        }
    }
}
