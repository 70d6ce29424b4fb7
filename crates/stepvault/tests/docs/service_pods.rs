//! The manifests with their own configurations and commands, run as a cluster runs them: another user than root without
//! capabilities, a read-only root, and a volume that all users can write to, as an emptyDir is.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rustix::process::Signal;
use stepvault_testkit::process::{TestCommand, TestProcess, wait_until};
use stepvault_testkit::s3::StrictS3;
use yaml_rust2::Yaml;

use crate::place::{Place, read};
use crate::service_configurations::{configuration_of, own_containers};
use crate::service_invocations::{runs_stepvault, tables_with, words};

/// Makes a container of its arguments, and becomes its program.
const CONTAINER: &str = r#"
set -e
root=$1 volume=$2 mounted=$3 configuration=$4 binary=$5 trainer=$6 is_read_only=$7
shift 7
mount --make-rprivate /
mount -t tmpfs -o mode=0755 root "$root"
for name in bin lib lib64 usr; do
  if [ -L "/$name" ]; then
    cp -P "/$name" "$root/$name"
  elif [ -d "/$name" ]; then
    mkdir "$root/$name"
    mount --bind "/$name" "$root/$name"
  fi
done
for name in dev proc; do
  mkdir "$root/$name"
  mount --rbind "/$name" "$root/$name"
done
mkdir -p -m 1777 "$root/tmp"
if [ "$is_read_only" = false ]; then mount -t tmpfs -o mode=1777 tmp "$root/tmp"; fi
mkdir -p "$root/etc/stepvault" "$root/programs" "$root$mounted"
cp "$configuration" "$root/etc/stepvault/stepvault.toml"
cp "$trainer" "$root/programs/torchrun"
touch "$root/programs/stepvault"
mount --bind "$binary" "$root/programs/stepvault"
mount --bind "$volume" "$root$mounted"
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid=12345 --regid=12345 --clear-groups --no-new-privs --bounding-set=-all \
  env HOME=/ PATH=/programs:/usr/bin:/bin "$@"
"#;

/// The trainer: it saves step 10, or the next one if it finds that on each of its nodes, after which it ends.
const TRAINER: &str = r#"#!/bin/sh
set -e
rank=0 nodes=1
for word; do
  case $word in
    --output-dir=*) directory=${word#*=} ;;
    --node-rank=*) rank=${word#*=} ;;
    --nnodes=*) nodes=${word#*=} ;;
  esac
done
step=10
if [ -e "$directory/step_10" ]; then
  for other in $(seq 0 $((nodes - 1))); do
    [ -s "$directory/step_10/shard_$other.bin" ] || exit 7
  done
  step=20
fi
mkdir -p "$directory/step_$step"
echo "$step $rank" >"$directory/step_$step/shard_$rank.bin"
"#;

/// The pods of one manifest.
struct Manifest {
    place: Place,
    text: String,
    pod: Yaml,
    /// Where the volume with the checkpoints is mounted.
    mounted: String,
    variables: Vec<(&'static str, String)>,
}

impl Manifest {
    /// Takes the pods that have this controller, with the server's address in their configuration.
    fn new(name: &str, mounted: &str, server: &StrictS3) -> Self {
        let text = read(format!("config/kubernetes/base/{name}/manifest.yaml"));
        let mut pods = tables_with(&text, "containers").into_iter();
        let pod = pods.find(|pod| !own_containers(pod).is_empty());
        let manifest = Self {
            place: Place::new(),
            pod: pod.expect("a pod with stepvault"),
            text,
            mounted: mounted.to_owned(),
            variables: vec![
                ("AWS_ACCESS_KEY_ID", server.access_key().to_owned()),
                ("AWS_SECRET_ACCESS_KEY", server.secret_key().to_owned()),
            ],
        };
        for own in own_containers(&manifest.pod) {
            let region = "region = \"eu-west-1\"\n";
            let configuration = configuration_of(&manifest.text, &manifest.pod, &own);
            assert!(configuration.contains(region), "{configuration}");
            let there = format!("{region}endpoint = \"{}\"\n", server.endpoint());
            let text = configuration.replace(region, &there) + "quiet-time = \"1s\"\n";
            std::fs::write(manifest.path("stepvault.toml"), text).unwrap();
        }
        std::fs::write(manifest.path("torchrun"), TRAINER).unwrap();
        std::fs::set_permissions(manifest.path("torchrun"), Permissions::from_mode(0o755)).unwrap();
        std::fs::create_dir(manifest.path("root")).unwrap();
        manifest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// Makes the empty volume of a new pod.
    fn volume(&self, pod: &str, mode: u32) -> PathBuf {
        let volume = self.path(pod);
        std::fs::create_dir(&volume).unwrap();
        std::fs::set_permissions(&volume, Permissions::from_mode(mode)).unwrap();
        volume
    }

    /// The command of a container in the pod with this volume, or another command of its program. `launch` stands for
    /// what only the cluster knows.
    fn command(
        &self,
        container: &Yaml,
        of: &[String],
        volume: &Path,
        launch: &str,
        index: usize,
    ) -> TestCommand {
        let index = index.to_string();
        let mut command = TestCommand::new("sh", self.place.path());
        command.args(["-c", CONTAINER, "sh"]);
        command.args([self.path("root").as_path(), volume, Path::new(&self.mounted)]);
        command.args([
            self.path("stepvault.toml").as_path(),
            Path::new(env!("CARGO_BIN_EXE_stepvault")),
            &self.path("torchrun"),
        ]);
        let is_read_only = container["securityContext"]["readOnlyRootFilesystem"].as_bool();
        command.arg(is_read_only.unwrap_or(false).to_string());
        let mut variables = vec![("JOB_COMPLETION_INDEX", index.as_str())];
        variables.extend(self.variables.iter().map(|(name, value)| (*name, value.as_str())));
        for variable in container["env"].as_vec().into_iter().flatten() {
            let value = variable["value"].as_str().unwrap_or(launch);
            variables.push((variable["name"].as_str().unwrap(), value));
        }
        let expanded = |word: &String| {
            variables
                .iter()
                .fold(word.clone(), |word, (name, value)| word.replace(&format!("$({name})"), value))
        };
        command.args(of.iter().map(expanded));
        command.envs(variables);
        command.under(["unshare", "--mount"]);
        command
    }

    /// The steps on the remote, as a pod sees them.
    fn durable(&self, container: &Yaml, volume: &Path) -> Vec<u64> {
        let list = words_of("stepvault list --run my-run --json");
        let listed = self.command(container, &list, volume, "list", 0).run().expect_code(0);
        let steps = listed.json()["steps"].as_array().unwrap().clone();
        let durable = steps.iter().filter(|step| step["remotes"].as_array().is_some_and(|on| !on.is_empty()));
        let mut numbers: Vec<u64> = durable.map(|step| step["step"].as_u64().unwrap()).collect();
        numbers.sort_unstable();
        numbers
    }
}

fn words_of(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// What a container runs.
fn program(container: &Yaml) -> Vec<String> {
    let mut command = words(&container["command"]);
    if command.is_empty() {
        // The entry point of the image.
        command.push("stepvault".to_owned());
    }
    command.extend(words(&container["args"]));
    command
}

/// A server that has the manifests' bucket; `None`, and reports it, where containers cannot be made.
fn server() -> Option<StrictS3> {
    let made =
        std::process::Command::new("unshare").args(["--mount", "mount", "--make-rprivate", "/"]).status();
    if !rustix::process::geteuid().is_root() || !made.is_ok_and(|status| status.success()) {
        eprintln!("not run: only the superuser can make containers, where mount namespaces are allowed");
        return None;
    }
    let server = StrictS3::start();
    server.create_bucket("my-bucket");
    Some(server)
}

/// Waits until an agent answers to `probe`.
fn wait_for_agent(probe: &TestCommand) {
    wait_until("the agent answers", || probe.run().is_success());
}

/// Runs the pods of a launch to their end: `start` begins each of them.
fn complete(pods: impl Iterator<Item = TestProcess>) {
    let pods: Vec<TestProcess> = pods.collect();
    for pod in pods {
        pod.wait().expect_code(0);
    }
}

#[test]
fn a_pod_that_runs_the_trainer_saves_and_its_successor_goes_on() {
    let Some(server) = server() else { return };
    for (name, nodes, mode) in [("job", 1, 0o777), ("indexed-job", 4, 0o2777), ("jobset", 4, 0o2777)] {
        let manifest = Manifest::new(name, "/checkpoints", &server);
        let container = own_containers(&manifest.pod).remove(0);
        for (launch, saved) in [("first", vec![10]), ("second", vec![10, 20])] {
            let volumes: Vec<PathBuf> =
                (0..nodes).map(|index| manifest.volume(&format!("{launch}-{index}"), mode)).collect();
            complete(volumes.iter().enumerate().map(|(index, volume)| {
                manifest.command(&container, &program(&container), volume, launch, index).start()
            }));
            let durable = manifest.durable(&container, &volumes[0]);
            assert_eq!(durable, saved, "{name}, {launch}");
            let doctor = words_of("stepvault doctor --json");
            manifest.command(&container, &doctor, &volumes[0], launch, 0).run().expect_code(0);
        }
        server.objects().with(std::collections::BTreeMap::clear);
    }
}

#[test]
fn an_agent_beside_the_trainer_saves_and_the_next_pod_restores() {
    let Some(server) = server() else { return };
    for (name, nodes) in [("job-sidecar", 1), ("indexed-job-sidecar", 4), ("jobset-sidecar", 4)] {
        run_sidecars(&Manifest::new(name, "/checkpoints", &server), nodes);
        server.objects().with(std::collections::BTreeMap::clear);
    }
}

/// Runs two launches of pods with a sidecar, the second one on empty volumes.
fn run_sidecars(manifest: &Manifest, nodes: usize) {
    let own = own_containers(&manifest.pod);
    let [restore, agent] = own.as_slice() else {
        panic!("a restore and an agent are expected: {own:?}");
    };
    let others = manifest.pod["containers"].as_vec().unwrap();
    let trainer = others.iter().find(|container| !runs_stepvault(container)).unwrap();
    for (launch, saved) in [("first", vec![10]), ("second", vec![10, 20])] {
        let volumes: Vec<PathBuf> =
            (0..nodes).map(|index| manifest.volume(&format!("{launch}-{index}"), 0o2777)).collect();
        let started = |container: &Yaml, of: &[String]| {
            let start = |(index, volume): (usize, &PathBuf)| {
                manifest.command(container, of, volume, launch, index).start()
            };
            volumes.iter().enumerate().map(start).collect::<Vec<_>>()
        };
        complete(started(restore, &program(restore)).into_iter());
        let agents = started(agent, &program(agent));
        let probe = words(&agent["startupProbe"]["exec"]["command"]);
        for (index, volume) in volumes.iter().enumerate() {
            wait_for_agent(&manifest.command(agent, &probe, volume, launch, index));
        }
        complete(started(trainer, &program(trainer)).into_iter());
        for agent in &agents {
            agent.signal(Signal::TERM);
        }
        for agent in agents {
            // The last part may arrive when this agent has ended.
            let code = agent.wait().code;
            assert!(matches!(code, 0 | 3), "{code}");
        }
        assert_eq!(manifest.durable(agent, &volumes[0]), saved, "{launch}");
    }
}

#[test]
fn the_trial_goes_on_where_a_pod_was_ended() {
    let Some(server) = server() else { return };
    let manifest = Manifest::new("trial", "/checkpoints", &server);
    let container = own_containers(&manifest.pod).remove(0);
    let faster: Vec<String> =
        program(&container).iter().map(|word| word.replace("sleep 15", "sleep 1")).collect();
    assert_ne!(faster, program(&container));
    let mut newest = 0;
    for pod in ["first", "second"] {
        let volume = manifest.volume(pod, 0o777);
        let running = manifest.command(&container, &faster, &volume, pod, 0).start();
        let next = format!("my-run/step_{}", newest + 10);
        wait_until("the next step is saved", || volume.join(&next).exists());
        running.signal(Signal::TERM);
        let output = running.wait();
        assert!(output.stdout.contains(&format!("training goes on from step {newest}\n")), "{output:?}");
        let durable = manifest.durable(&container, &volume);
        let last = durable.last().copied();
        assert!(last > Some(newest), "{pod}: {durable:?}");
        newest = last.unwrap();
    }
}

#[test]
fn an_agent_of_a_node_saves_and_the_jobs_from_cron_look_after_it() {
    let Some(server) = server() else { return };
    let manifest = Manifest::new("daemonset", "/mnt/nvme", &server);
    let agent = own_containers(&manifest.pod).remove(0);
    // A directory of the node that belongs to the pod's user.
    let volume = manifest.volume("nvme", 0o755);
    std::os::unix::fs::chown(&volume, Some(12345), Some(12345)).unwrap();
    let running = manifest.command(&agent, &program(&agent), &volume, "node-a", 0).start();
    let probe = words_of("stepvault status --quiet");
    wait_for_agent(&manifest.command(&agent, &probe, &volume, "node-a", 0));
    let trainer = words_of("torchrun --output-dir=/mnt/nvme/my-run");
    complete(std::iter::once(manifest.command(&agent, &trainer, &volume, "node-a", 0).start()));
    running.signal(Signal::TERM);
    running.wait().expect_code(0);
    assert_eq!(manifest.durable(&agent, &volume), [10]);

    let upkeep = Manifest::new("maintenance", "/unused", &server);
    let volume = upkeep.volume("unused", 0o777);
    let jobs = tables_with(&upkeep.text, "containers");
    assert_eq!(jobs.len(), 3, "prune, gc and verify");
    for job in jobs {
        let container = own_containers(&job).remove(0);
        upkeep.command(&container, &program(&container), &volume, "upkeep", 0).run().expect_code(0);
    }
}
