//! Output: a table, the same rows as JSON, and the missed goals.

use std::fmt::Write as _;
use std::path::Path;

use crate::Failure;
use crate::machine::Machine;

/// One comparison.
#[derive(Debug, Clone, serde::Serialize)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) ours: f64,
    pub(crate) peer: f64,
    pub(crate) peer_name: String,
    pub(crate) unit: String,
    /// Ours divided by theirs: below 1 ours takes less. 1 if both are zero; not a number (`null`) if only theirs is.
    pub(crate) ratio: f64,
    /// Max ratio.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goal: Option<f64>,
    /// Half of the range between the quartiles of the rounds, as a share of the median: of ours, and of the peer's figures.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) spread: Option<[f64; 2]>,
    /// Probability that chance alone made the two differ as much: a Mann-Whitney U test over the rounds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p: Option<f64>,
    /// Whether the row has no goal.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) info: bool,
}

impl Row {
    /// Returns a comparison without a goal.
    pub(crate) fn info(case: &str, unit: &str, ours: f64, peer_name: &str, peer: f64) -> Self {
        Self {
            case: case.to_owned(),
            ours,
            peer,
            peer_name: peer_name.to_owned(),
            unit: unit.to_owned(),
            ratio: if ours == peer { 1.0 } else { ours / peer },
            goal: None,
            spread: None,
            p: None,
            info: true,
        }
    }

    /// Returns a figure with an absolute goal: at most `max`.
    pub(crate) fn at_most(case: &str, unit: &str, ours: f64, max: f64) -> Self {
        Self::info(case, unit, ours, "goal", max).goal(1.0)
    }

    /// Sets the max ratio.
    pub(crate) fn goal(self, ratio: f64) -> Self {
        Self {
            goal: Some(ratio),
            info: false,
            ..self
        }
    }

    fn is_missed(&self) -> bool {
        // Not a number counts as missed.
        self.goal
            .is_some_and(|goal| self.ratio.is_nan() || self.ratio > goal)
    }
}

/// Results of a benchmark.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Notes above the table, a paragraph each: what was measured, and what this machine cannot show.
    pub(crate) notes: Vec<String>,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    /// Prints the table and writes the rows as a JSON array.
    pub(super) fn finish(&self, json: &Path) -> Result<(), Failure> {
        print!("{}", self.markdown(&Machine::look()?));
        if let Some(folder) = json.parent() {
            std::fs::create_dir_all(folder)?;
        }
        Ok(std::fs::write(
            json,
            serde_json::to_vec_pretty(&self.rows)?,
        )?)
    }

    fn markdown(&self, machine: &Machine) -> String {
        let Machine {
            command,
            cpu,
            cores,
            commit,
            build,
            ..
        } = machine;
        let mut text = format!(
            "`{command}` on {cpu}, {cores} cores, {build} build of {commit}. Ratio: Bywash by the peer, median of the \
             ratios within a round; figures are medians over rounds.\n\n"
        );
        for note in &self.notes {
            let _ = writeln!(text, "{note}\n");
        }
        let (goals, infos): (Vec<&Row>, Vec<&Row>) =
            self.rows.iter().partition(|row| row.goal.is_some());
        table(&mut text, &goals);
        table(&mut text, &infos);
        let missed: Vec<&&Row> = goals.iter().filter(|row| row.is_missed()).collect();
        let _ = write!(text, "{} of {} goals missed", missed.len(), goals.len());
        for (at, row) in missed.iter().enumerate() {
            let _ = write!(
                text,
                "{}{} / {} ({:.2} > {:.2})",
                if at == 0 { ": " } else { "; " },
                row.case,
                row.peer_name,
                row.ratio,
                row.goal.unwrap_or(f64::NAN)
            );
        }
        text.push_str(".\n");
        text
    }
}

/// Prints rows with goals and rows without in separate tables.
fn table(text: &mut String, rows: &[&Row]) {
    if rows.is_empty() {
        return;
    }
    text.push_str(
        "| case | unit | Bywash | peer | its figure | ratio | goal | | spread, % | p |\n|---|---|--:|---|--:|--:|--:|---|--:|--:|\n",
    );
    for row in rows {
        let (goal, verdict) = match row.goal {
            None => (String::new(), ""),
            Some(goal) if row.is_missed() => (format!("{goal:.2}"), "missed"),
            Some(goal) => (format!("{goal:.2}"), "met"),
        };
        let spread = row.spread.map_or_else(String::new, |[ours, peer]| {
            format!("{:.0}, {:.0}", ours * 100.0, peer * 100.0)
        });
        let p = row.p.map_or_else(String::new, |p| format!("{p:.3}"));
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {:.2} | {goal} | {verdict} | {spread} | {p} |",
            row.case,
            row.unit,
            digits(row.ours),
            row.peer_name,
            digits(row.peer),
            row.ratio,
        );
    }
    text.push('\n');
}

/// Formats a number with three significant digits.
fn digits(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn rows_are_written_as_json() {
        let json = |row: &Row| serde_json::to_value(row).unwrap();
        assert_eq!(
            json(&Row::info("a", "ns", 1.0, "b", 4.0)),
            serde_json::json!({"case": "a", "ours": 1.0, "peer": 4.0, "peer_name": "b", "unit": "ns", "ratio": 0.25,
                "info": true})
        );
        assert_eq!(
            json(&Row::at_most("a", "bytes", 96.0, 128.0)),
            serde_json::json!({"case": "a", "ours": 96.0, "peer": 128.0, "peer_name": "goal", "unit": "bytes",
                "ratio": 0.75, "goal": 1.0})
        );
    }

    #[test]
    fn missed_goals_are_listed() {
        let met = Row::info("quick", "ns", 1.0, "rival", 4.0).goal(0.5);
        let missed = Row::info("slow", "ns", 3.0, "rival", 4.0).goal(0.5);
        let unknown = Row::info("unknown", "ns", f64::NAN, "rival", 4.0).goal(0.5);
        let report = Report {
            notes: Vec::new(),
            rows: vec![met, missed, unknown],
        };
        let text = report.markdown(&Machine::look().unwrap());
        assert!(
            text.ends_with(
                "2 of 3 goals missed: slow / rival (0.75 > 0.50); unknown / rival (NaN > 0.50).\n"
            ),
            "{text}"
        );
    }
}
