//! `demo` runs to its end and cleans up.

use crate::support::Place;

#[test]
fn the_whole_loop_goes_as_it_has_to_and_leaves_nothing_behind() {
    let place = Place::new();
    let outcome = place.run(&["demo"]).expect_code(0);
    for text in
        ["restore", "step 40; skipped step 50", "removed steps 10, 20", "all results were as expected"]
    {
        assert!(outcome.stdout.contains(text), "{outcome:#?}");
    }
    assert_eq!(outcome.stderr, "");
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}

#[test]
fn the_document_names_every_stage() {
    let place = Place::new();
    let document = place.document(0, &["demo", "--keep", "kept"]);
    assert_eq!(document["restored_step"], 40);
    assert_eq!(document["remaining_steps"], serde_json::json!([50, 40, 30]));
    assert_eq!(document["stages"].as_array().unwrap().len(), 16);
    assert!(document["stages"][0]["seconds"].is_number());
    assert_eq!(document["directory"], place.path("kept").to_str().unwrap());
    assert!(place.path("kept/remote/demo/000000000040.a1/step_40/model.safetensors").is_file());

    let error = place.run(&["demo", "--keep", "kept"]).expect_code(2);
    error.expect_error("refusing to run the demo here").expect_error("the directory is not empty");
}
