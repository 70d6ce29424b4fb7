//! Names of runs that contain variables, so that one configuration serves every task of an array job or a sweep.

use std::collections::BTreeSet;

use globset::{GlobBuilder, escape};

use super::key::KeyPath;
use super::merge::Merged;
use super::sources::Sources;
use crate::ids::RunName;

/// The key, at the top of the file and in the table of a run.
const KEY: &str = "run-name";
/// Its variable: the key of the file's top can be set by it like any other.
const VARIABLE: &str = "STEPVAULT_RUN_NAME";
/// Stands for the name of the machine, which is not a variable everywhere.
pub const HOSTNAME: &str = "hostname";

/// A name with variables: `sweep-{SLURM_ARRAY_TASK_ID}`.
#[derive(Debug, PartialEq, Eq)]
struct Template<'a> {
    /// The texts before the variables, and each variable.
    variables: Vec<(&'a str, &'a str)>,
    /// The text after the last one.
    end: &'a str,
}

impl<'a> Template<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (mut variables, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('{') {
            let (name, end) = after.split_once('}')?;
            let is_letter = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if before.contains('}') || name.is_empty() || !name.chars().all(is_letter) {
                return None;
            }
            variables.push((before, name));
            rest = end;
        }
        (!rest.contains('}')).then_some(Self { variables, end: rest })
    }

    /// Returns the name, or the first variable that has no value.
    fn name(&self, value: impl Fn(&str) -> Option<String>) -> Result<String, &'a str> {
        let mut name = String::new();
        for (before, variable) in &self.variables {
            name.push_str(before);
            name.push_str(&value(variable).filter(|value| !value.is_empty()).ok_or(*variable)?);
        }
        Ok(name + self.end)
    }

    /// Whether the template can have this name: each variable stands for a text that is not empty.
    fn can_be(&self, name: &str) -> bool {
        let fixed = self.variables.iter().map(|(text, _)| escape(text) + "?*");
        let glob: String = fixed.chain([escape(self.end)]).collect();
        let glob = GlobBuilder::new(&glob).backslash_escape(false).build();
        glob.is_ok_and(|glob| glob.compile_matcher().is_match(name))
    }
}

impl Sources {
    /// Returns the variables that the names of runs in the file contain: they belong into the
    /// [environment](Self::environment).
    pub fn variables_of_names(&self) -> BTreeSet<String> {
        let file = self.file.as_ref().and_then(|file| file.text.parse::<toml::Table>().ok());
        let file = file.unwrap_or_default();
        let runs = file.get("run").and_then(toml::Value::as_table);
        let tables = runs.into_iter().flat_map(toml::Table::values);
        let texts = tables
            .filter_map(|table| table.get(KEY))
            .chain(file.get(KEY))
            .filter_map(|text| Some(text.as_str()?.to_owned()));
        let texts: Vec<String> = texts.chain(self.variable(VARIABLE)).collect();
        texts
            .iter()
            .filter_map(|text| Template::parse(text))
            .flat_map(|template| template.variables)
            .map(|(_, name)| name.to_owned())
            .collect()
    }

    fn variable(&self, name: &str) -> Option<String> {
        let mut variables = self.environment.iter();
        variables.find(|(key, _)| key == name).map(|(_, value)| value.clone())
    }
}

/// Gives the runs of the file the names that their templates have here. A run whose variable is not set is left out if
/// another one is selected, and is a fault otherwise.
pub(super) fn name_runs(merged: &mut Merged, sources: &Sources) {
    let top = KeyPath::of(&[KEY]);
    if let Some(template) = sources.variable(VARIABLE).or_else(|| text_of(merged, &top)) {
        match merged.names("run").to_vec().as_slice() {
            [] => name_run(merged, sources, &top, None, &template),
            [only] => name_run(merged, sources, &top, Some(only), &template),
            _ => merged.fault(&top, "the file has several runs", "write it into the table of each"),
        }
        return;
    }
    for run in merged.names("run").to_vec() {
        let key = KeyPath::of(&["run", &run, KEY]);
        if let Some(template) = text_of(merged, &key) {
            name_run(merged, sources, &key, Some(&run), &template);
        }
    }
}

fn text_of(merged: &Merged, key: &KeyPath) -> Option<String> {
    merged.get(key)?.value.as_str().map(str::to_owned)
}

fn name_run(merged: &mut Merged, sources: &Sources, key: &KeyPath, table: Option<&str>, text: &str) {
    let Some(template) = Template::parse(text) else {
        let hint = "write variables as in \"sweep-{SLURM_ARRAY_TASK_ID}\"";
        return merged.fault(key, "its braces do not enclose names of variables", hint);
    };
    let selected = sources.run.as_ref().map(RunName::as_str);
    let name =
        match (selected.filter(|name| template.can_be(name)), template.name(|name| sources.variable(name))) {
            (Some(selected), _) => selected.to_owned(),
            (None, Ok(name)) => name,
            (None, Err(_)) if selected.is_some() => {
                if let Some(table) = table {
                    merged.rename_run(table, None);
                }
                return;
            }
            (None, Err(variable)) => {
                let why = format!("the variable {variable} is not set");
                return merged.fault(key, why, "set it, or select the run: --run NAME");
            }
        };
    if table != Some(name.as_str()) && merged.names("run").contains(&name) {
        let why = format!("another run has the name '{name}'");
        return merged.fault(key, why, "give each run its own name");
    }
    match table {
        Some(table) => merged.rename_run(table, Some(&name)),
        None => merged.add_name(&KeyPath::of(&["run", &name])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{FileText, check};

    fn sources(text: &str, variables: &[(&str, &str)], run: Option<&str>) -> Sources {
        Sources {
            file: Some(FileText { path: "/etc/stepvault.toml".into(), text: text.to_owned() }),
            environment: variables
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
            run: run.map(|run| RunName::new(run).unwrap()),
            ..Sources::default()
        }
    }

    fn runs(text: &str, variables: &[(&str, &str)], run: Option<&str>) -> Result<Vec<String>, String> {
        let report = check(&sources(text, variables, run));
        match report.config {
            Some(config) => Ok(config.runs.into_iter().map(|run| run.name.into()).collect()),
            None => Err(report.faults.iter().map(ToString::to_string).collect()),
        }
    }

    const IN_TABLE: &str = "[run.sweep]\nrun-name = \"sweep-{TASK}\"\nwatch = \"out\"\n";

    #[test]
    fn a_name_is_completed_by_variables_wherever_it_stands() {
        let task = [("TASK", "3")];
        assert_eq!(runs(IN_TABLE, &task, None).unwrap(), ["sweep-3"]);
        let top = format!("run-name = \"a/{{JOB}}-{{TASK}}x\"\n{}", "[run.any]\nwatch = \"out\"\n");
        let both = [("TASK", "3"), ("JOB", "7")];
        assert_eq!(runs(&top, &both, None).unwrap(), ["a/7-3x"]);
        assert_eq!(runs("run-name = \"{TASK}\"\n", &task, None).unwrap(), ["3"]);
        assert_eq!(runs("run-name = \"plain\"\n[run.x]\n", &[], None).unwrap(), ["plain"]);
        let names: Vec<String> = sources(&top, &[], None).variables_of_names().into_iter().collect();
        assert_eq!(names, ["JOB", "TASK"]);
    }

    #[test]
    fn a_selected_run_is_the_template_that_can_have_its_name() {
        for variables in [&[][..], &[("TASK", "9")]] {
            assert_eq!(runs(IN_TABLE, variables, Some("sweep-3")).unwrap(), ["sweep-3"]);
        }
        // Without the variable, the other run has nothing to do with it.
        assert!(runs(IN_TABLE, &[], Some("other")).unwrap().is_empty());
        assert_eq!(runs(IN_TABLE, &[("TASK", "9")], Some("other")).unwrap(), ["sweep-9"]);
    }

    #[test]
    fn what_gives_no_name_is_a_fault() {
        let unset = runs(IN_TABLE, &[], None).unwrap_err();
        assert!(unset.contains("the variable TASK is not set"), "{unset}");
        for text in ["{", "a}", "{a b}", "{}", "{a}{"] {
            let file = format!("[run.x]\nrun-name = \"{text}\"\n");
            let fault = runs(&file, &[("a", "1")], None).unwrap_err();
            assert!(fault.contains("braces"), "{text}: {fault}");
        }
        let bad = runs("run-name = \"{TASK}\"\n", &[("TASK", "a b")], None).unwrap_err();
        assert!(bad.contains("a b"), "{bad}");
        let twice = "[run.a]\nrun-name = \"x\"\n[run.b]\nrun-name = \"x\"\n";
        assert!(runs(twice, &[], None).unwrap_err().contains("another run has the name 'x'"));
        assert!(runs("run-name = \"x\"\n[run.a]\n[run.b]\n", &[], None).is_err());
    }

    #[test]
    fn a_template_can_have_a_name_or_not() {
        for (template, name, can_be) in [
            ("sweep-{A}", "sweep-3", true),
            ("sweep-{A}", "sweep-", false),
            ("sweep-{A}", "swap-3", false),
            ("{A}-{B}", "1-2", true),
            ("{A}-{B}", "1-", false),
            ("{A}-{B}", "-1-2", true),
            ("{A}{B}", "12", true),
            ("{A}{B}", "1", false),
            ("x{A}x", "x", false),
            ("x{A}x", "xx", false),
            ("plain", "plain", true),
        ] {
            assert_eq!(Template::parse(template).unwrap().can_be(name), can_be, "{template} {name}");
        }
    }
}
