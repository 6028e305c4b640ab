//! `bywash completions` and `bywash man`: shell completions and manual pages.

use std::io::{self, Write};
use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Cli;
use crate::failure::Failure;
use crate::output::written;

/// Print a shell's completions: eval "$(bywash completions bash)"
///
/// For fish: bywash completions fish | source. To keep them, write them where the shell looks, such as
/// /etc/bash_completion.d/bywash, a folder of zsh's fpath as _bywash, or ~/.config/fish/completions/bywash.fish.
#[derive(Debug, clap::Args)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

/// Print the manual page of the program, or of a verb: bywash man | man -l -
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// A verb, as cp
    verb: Option<String>,
    /// Write all pages into this folder instead, as bywash.1, bywash-cp.1, ...
    #[arg(long, value_name = "DIR", conflicts_with = "verb")]
    dir: Option<PathBuf>,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "bywash", &mut script);
    written(io::stdout().lock().write_all(&script))
}

pub(crate) fn man(args: &ManArgs) -> Result<(), Failure> {
    let mut program = Cli::command().disable_help_subcommand(true);
    program.build();
    if let Some(dir) = &args.dir {
        let failed = |error| Failure::io(format!("cannot write to {}", dir.display()), &error);
        std::fs::create_dir_all(dir).map_err(failed)?;
        return clap_mangen::generate_to(program, dir).map_err(failed);
    }
    let command = match &args.verb {
        None => program,
        Some(verb) => {
            let found = program.find_subcommand(verb).cloned();
            found.ok_or_else(|| {
                Failure::usage(format!("{verb:?} is no verb; `bywash help` lists them"))
            })?
        }
    };
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|error| Failure::io("cannot make the page", &error))?;
    written(io::stdout().lock().write_all(&page))
}
