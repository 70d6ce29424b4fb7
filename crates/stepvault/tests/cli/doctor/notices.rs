//! Which providers' notices count, by the machine's firmware.

use crate::doctor::{Findings as _, place};

/// Another firmware's words in the place of this machine's.
fn firmware(vendor: &str, product: &str) -> String {
    format!(
        "mount -t tmpfs none /sys/class && mkdir -p /sys/class/dmi/id || exit 99\n\
         echo '{vendor}' > /sys/class/dmi/id/sys_vendor; echo '{product}' > /sys/class/dmi/id/product_name"
    )
}

#[test]
fn the_notice_of_the_machines_own_provider_counts_alone() {
    let place = place();
    place.save_in_run("step_1", 2048, 0);
    for (vendor, product, outcome, measured, count) in [
        ("Amazon EC2", "p5.48xlarge", "pass", "runs on EC2: its firmware says 'Amazon EC2'", 2),
        ("Google", "Google Compute Engine", "pass", "runs on Compute Engine: ", 2),
        ("Dell Inc.", "PowerEdge R750", "pass", "runs on neither EC2, Compute Engine nor Azure", 1),
        ("QEMU", "Standard PC", "pass", "the provider is unknown", 4),
    ] {
        let remote = format!("main=file://{}", place.path("remote").display());
        let Some(ran) = place.doctor_after(
            &firmware(vendor, product),
            &["--remote", &remote, "--upload-rate", "100 MB", "--save-interval", "10m"],
        ) else {
            return;
        };
        ran.finding("notices", "this machine").expect(outcome, measured, "");
        let document = ran.json();
        let drains = document["feasibility"].as_array().unwrap().iter();
        let drains = drains.filter(|finding| finding["check"] == "drain").count();
        assert_eq!(drains, count, "{vendor}: {document:#}");
    }
}

#[test]
fn a_notice_that_the_configuration_leaves_out_is_warned_of() {
    let place = place();
    std::fs::write(place.path("stepvault.toml"), "[agent]\nnotices = [\"gce\"]\n").unwrap();
    let Some(ran) = place.doctor_after(&firmware("Amazon EC2", "p5.48xlarge"), &[]) else {
        return;
    };
    ran.finding("notices", "this machine").expect(
        "warn",
        "but the agent does not poll its notices",
        "add \"ec2\" to agent.notices, or set agent.notices = \"auto\"",
    );
    let ran = place.doctor(&["--notice", "45s"]);
    assert!(!ran.stdout.contains("\"notices\""), "{ran:?}");
}
