//! `object_store` against the server.

use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _};
use object_store::path::Path;
use object_store::{
    Attribute, Error, GetOptions, GetRange, ObjectMeta, ObjectStore as _, ObjectStoreExt as _, PutMode,
    PutOptions, UpdateVersion,
};
use stepvault_testkit::gcs::StrictGcsOptions;

use crate::{payload, server, server_with, store, store_as, stored};

fn names(list: &[ObjectMeta]) -> Vec<&str> {
    list.iter().map(|object| object.location.as_ref()).collect()
}

#[tokio::test]
async fn puts_gets_and_heads() {
    let server = server();
    let store = store(&server);
    let body = payload(1000);
    let path = Path::from("dir/a b=ü&<c>");
    let put = store.put(&path, Bytes::from(body.clone()).into()).await.expect("a put");
    assert_eq!(stored(&server, path.as_ref()).as_ref(), Some(&body));

    let head = store.head(&path).await.expect("a head");
    assert_eq!((head.size, &head.e_tag, &head.version), (1000, &put.e_tag, &put.version));
    assert!(head.version.is_some());
    let get = store.get(&path).await.expect("a get");
    assert_eq!(get.bytes().await.expect("a body"), body);
    let ranges = [10..20, 500..1000];
    let pieces = store.get_ranges(&path, &ranges).await.expect("ranges");
    assert_eq!((&pieces[0][..], &pieces[1][..]), (&body[10..20], &body[500..1000]));
    let options = GetOptions { range: Some(GetRange::Suffix(5)), ..GetOptions::default() };
    let suffix = store.get_opts(&path, options).await.expect("a get");
    assert_eq!((suffix.meta.size, suffix.range.clone()), (1000, 995..1000));
    assert_eq!(suffix.bytes().await.expect("a body"), &body[995..]);
    store.get_range(&path, 1000..1001).await.expect_err("beyond the end");
    assert!(matches!(store.head(&Path::from("none")).await, Err(Error::NotFound { .. })));
}

#[tokio::test]
async fn put_modes_hold() {
    let server = server();
    let store = store(&server);
    let path = Path::from("commit");
    let create = || PutOptions::from(PutMode::Create);
    let first = store.put_opts(&path, "one".into(), create()).await.expect("a put");
    let error = store.put_opts(&path, "two".into(), create()).await.expect_err("it exists");
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(stored(&server, "commit").as_deref(), Some(b"one".as_slice()));

    let update = |version| PutOptions::from(PutMode::Update(UpdateVersion { e_tag: None, version }));
    store.put_opts(&path, "two".into(), update(first.version.clone())).await.expect("the right generation");
    let error = store.put_opts(&path, "three".into(), update(first.version)).await.expect_err("an old one");
    assert!(matches!(error, Error::Precondition { .. }), "{error}");
}

#[tokio::test]
async fn attributes_stay_with_the_object() {
    let server = server();
    let store = store(&server);
    let path = Path::from("a");
    let mut options = PutOptions::default();
    options.attributes.insert(Attribute::ContentType, "text/plain".into());
    options.attributes.insert(Attribute::Metadata("run".into()), "r1".into());
    store.put_opts(&path, "x".into(), options.clone()).await.expect("a put");
    store.copy(&path, &Path::from("b")).await.expect("a copy");
    for name in ["a", "b"] {
        let get = store.get(&Path::from(name)).await.expect("a get");
        for (attribute, value) in &options.attributes {
            assert_eq!(get.attributes.get(attribute), Some(value), "{name}");
        }
    }
}

#[tokio::test]
async fn lists_pages_prefixes_and_offsets() {
    let server = server_with(StrictGcsOptions { list_page_size: 2, ..StrictGcsOptions::default() });
    let store = store(&server);
    for name in ["a", "b/1", "b/2", "b/c/3", "b/c/4", "b/d&'/5", "b0", "c/6"] {
        store.put(&Path::from(name), name.to_owned().into_bytes().into()).await.expect("a put");
    }
    let all: Vec<_> = store.list(None).try_collect().await.expect("a list");
    assert_eq!(names(&all), ["a", "b/1", "b/2", "b/c/3", "b/c/4", "b/d&'/5", "b0", "c/6"]);
    assert!(all.iter().all(|object| object.e_tag.is_some()));
    assert_eq!(all[3].size, 5);
    let under: Vec<_> = store.list(Some(&Path::from("b"))).try_collect().await.expect("a list");
    assert_eq!(names(&under), ["b/1", "b/2", "b/c/3", "b/c/4", "b/d&'/5"]);
    let after: Vec<_> = store
        .list_with_offset(Some(&Path::from("b")), &Path::from("b/2"))
        .try_collect()
        .await
        .expect("a list");
    assert_eq!(names(&after), ["b/c/3", "b/c/4", "b/d&'/5"]);

    let level = store.list_with_delimiter(Some(&Path::from("b"))).await.expect("a list");
    assert_eq!(names(&level.objects), ["b/1", "b/2"]);
    let prefixes: Vec<_> = level.common_prefixes.iter().map(Path::as_ref).collect();
    assert_eq!(prefixes, ["b/c", "b/d&'"]);
    let root = store.list_with_delimiter(None).await.expect("a list");
    assert_eq!((names(&root.objects), root.common_prefixes.len()), (vec!["a", "b0"], 2));
    let lists =
        server.faults().requests().iter().filter(|request| request.path.contains("list-type=2")).count();
    assert_eq!(lists, 4 + 3 + 2 + 2 + 2, "pages of two");
}

#[tokio::test]
async fn deletes_one_and_many() {
    let server = server();
    let store = store(&server);
    let paths: Vec<_> = (0..12).map(|number| Path::from(format!("d/{number}"))).collect();
    for path in &paths {
        store.put(path, "x".into()).await.expect("a put");
    }
    store.delete(&paths[0]).await.expect("a delete");
    assert!(matches!(store.delete(&paths[0]).await, Err(Error::NotFound { .. })), "it is gone");
    let rest = futures::stream::iter(paths[1..].to_vec()).map(Ok).boxed();
    let deleted: Vec<_> = store.delete_stream(rest).try_collect().await.expect("deletes");
    assert_eq!(deleted.len(), 11);
    assert_eq!(server.objects().keys(), Vec::<String>::new());
}

#[tokio::test]
async fn copies_and_copies_only_where_nothing_is() {
    let server = server();
    let store = store(&server);
    let (from, to) = (Path::from("dir/from é"), Path::from("dir/to"));
    store.put(&from, "one".into()).await.expect("a put");
    store.copy_if_not_exists(&from, &to).await.expect("a copy");
    store.put(&from, "two".into()).await.expect("a put");
    let error = store.copy_if_not_exists(&from, &to).await.expect_err("it exists");
    assert!(matches!(error, Error::AlreadyExists { .. }), "{error}");
    assert_eq!(stored(&server, "dir/to").as_deref(), Some(b"one".as_slice()));
    store.copy(&from, &to).await.expect("a copy");
    assert_eq!(stored(&server, "dir/to").as_deref(), Some(b"two".as_slice()));
    let error = store.copy(&Path::from("none"), &to).await.expect_err("no source");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

#[tokio::test]
async fn credentials_and_buckets_are_checked() {
    let server = server();
    let path = Path::from("a");
    let wrong = store_as(&server, "wrong", crate::BUCKET);
    assert!(matches!(wrong.put(&path, "x".into()).await, Err(Error::Unauthenticated { .. })));
    assert!(matches!(wrong.get(&path).await, Err(Error::Unauthenticated { .. })));
    let empty = store_as(&server, "", crate::BUCKET);
    empty.put(&path, "x".into()).await.expect("an empty bearer passes for none");
    let elsewhere = store_as(&server, server.bearer(), "no-such-bucket");
    assert!(matches!(elsewhere.put(&path, "x".into()).await, Err(Error::NotFound { .. })));
    elsewhere.list(None).try_collect::<Vec<_>>().await.expect_err("no bucket");
}
