//! `bywash completions`, `man` and `env --json`.

use std::process::{Command, Stdio};

use crate::common::{Server, bywash, data_dir, json_lines, stderr, stdout, text};

#[test]
fn completions_are_valid_scripts() {
    for shell in ["bash", "zsh", "fish"] {
        let printed = bywash(&["completions", shell]).output().unwrap();
        assert!(printed.status.success(), "{}", stderr(&printed));
        let script = stdout(&printed);
        for word in ["sync", "presign", "create-only"] {
            assert!(script.contains(word), "{shell}: {word} is missing");
        }
    }
    // Of the three shells, only bash is on every machine that runs these tests.
    let script = "eval \"$($0 completions bash)\"; COMP_WORDS=(bywash sy); COMP_CWORD=1; _bywash bywash sy bywash; \
                  echo \"${COMPREPLY[@]}\"";
    let program = env!("CARGO_BIN_EXE_bywash");
    let shell = Command::new("bash")
        .args(["-c", script, program])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(stdout(&shell), "sync\n", "{}", stderr(&shell));
}

#[test]
fn each_verb_has_a_manual_page() {
    let (home, _) = data_dir(&[]);
    let dir = home.path().join("man");
    let made = bywash(&["man", "--dir", text(&dir)]).output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    let help = stdout(&bywash(&["help"]).output().unwrap());
    let verbs: Vec<_> = help
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| line.split_whitespace().next())
        .filter(|verb| *verb != "help")
        .collect();
    assert!(verbs.len() > 12, "{help}");
    for verb in verbs {
        let page = std::fs::read_to_string(dir.join(format!("bywash-{verb}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS"), "{verb}");
        let printed = bywash(&["man", verb]).output().unwrap();
        assert!(
            stdout(&printed).contains(&format!("bywash\\-{verb}")),
            "{verb}"
        );
    }
    assert_eq!(
        bywash(&["man", "fly"]).output().unwrap().status.code(),
        Some(2)
    );
}

#[test]
fn env_prints_settings_as_json() {
    let (_home, data) = data_dir(&["first"]);
    let server = Server::start(&data, &[]);
    let printed = json_lines(&server.run(&["env", "--json", "--data-dir", text(&data)]));
    assert_eq!(printed[0]["AWS_ENDPOINT_URL"], server.s3.as_str());
}
