use super::*;

fn small_pages() -> StrictS3Options {
    StrictS3Options { max_keys: 3, ..StrictS3Options::default() }
}

#[tokio::test]
async fn listings_come_in_pages_with_opaque_tokens() {
    let (_server, client) = strict_with(small_pages());
    for number in 0..8 {
        put(&client, &format!("run/{number}"), b"x").await;
    }
    put(&client, "sun", b"x").await;
    let (mut keys, mut token, mut pages) = (Vec::new(), None, 0);
    loop {
        let list = client.list_objects_v2().bucket(BUCKET).prefix("run/").set_continuation_token(token);
        let page = list.send().await.unwrap();
        assert!(page.contents().len() <= 3);
        keys.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        pages += 1;
        token = page.next_continuation_token().map(str::to_owned);
        assert_eq!(page.is_truncated(), Some(token.is_some()));
        if token.is_none() {
            break;
        }
    }
    let expected: Vec<String> = (0..8).map(|number| format!("run/{number}")).collect();
    assert_eq!((keys, pages), (expected, 3));
    let key_for_token = client.list_objects_v2().bucket(BUCKET).continuation_token("run/3").send().await;
    assert_refused(key_for_token, 400, "InvalidArgument");
}

#[tokio::test]
async fn delimiter_start_after_and_max_keys() {
    let (_server, client) = strict();
    for key in ["a/1", "a/2", "b/1", "c", "d"] {
        put(&client, key, b"xy").await;
    }
    let page = client.list_objects_v2().bucket(BUCKET).delimiter("/").send().await.unwrap();
    let prefixes: Vec<_> = page.common_prefixes().iter().map(|common| common.prefix().unwrap()).collect();
    assert_eq!(prefixes, ["a/", "b/"]);
    assert_eq!(page.key_count(), Some(4));
    assert_eq!(page.contents()[0].size(), Some(2));
    assert!(page.contents()[0].last_modified().is_some());
    let page = client.list_objects_v2().bucket(BUCKET).start_after("a/2").max_keys(2).send().await.unwrap();
    let keys: Vec<_> = page.contents().iter().map(|object| object.key().unwrap()).collect();
    assert_eq!(keys, ["b/1", "c"]);
    assert_eq!(page.is_truncated(), Some(true));
    let none = client.list_objects_v2().bucket(BUCKET).prefix("z").send().await.unwrap();
    assert_eq!((none.key_count(), none.is_truncated()), (Some(0), Some(false)));
}

#[tokio::test]
async fn unfinished_uploads_come_in_pages() {
    let (server, client) = strict_with(small_pages());
    for key in ["a", "a", "b", "c", "c", "c", "other"] {
        client.create_multipart_upload().bucket(BUCKET).key(key).send().await.unwrap();
    }
    let (mut seen, mut key_marker, mut id_marker) = (Vec::new(), None, None);
    loop {
        let list = client.list_multipart_uploads().bucket(BUCKET).set_key_marker(key_marker);
        let page = list.set_upload_id_marker(id_marker).send().await.unwrap();
        assert!(page.uploads().len() <= 3);
        seen.extend(page.uploads().iter().map(|upload| upload.upload_id().unwrap().to_owned()));
        if page.is_truncated() != Some(true) {
            break;
        }
        key_marker = page.next_key_marker().map(str::to_owned);
        id_marker = page.next_upload_id_marker().map(str::to_owned);
    }
    let pending: Vec<String> = server.pending_uploads().into_iter().map(|upload| upload.upload_id).collect();
    assert_eq!(seen, pending);
    let some = client.list_multipart_uploads().bucket(BUCKET).prefix("oth").send().await.unwrap();
    assert_eq!(some.uploads().len(), 1);
    assert!(some.uploads()[0].initiated().is_some());
}

#[tokio::test]
async fn parts_come_in_pages() {
    let (server, client) = strict_with(small_pages());
    let created = client.create_multipart_upload().bucket(BUCKET).key("k").send().await.unwrap();
    let id = created.upload_id().unwrap();
    for number in [1, 2, 5, 9] {
        let part = client.upload_part().bucket(BUCKET).key("k").upload_id(id).part_number(number);
        part.body(stream(b"part")).send().await.unwrap();
    }
    let list = || client.list_parts().bucket(BUCKET).key("k").upload_id(id);
    let first = list().send().await.unwrap();
    assert_eq!((first.parts().len(), first.is_truncated()), (3, Some(true)));
    let rest = list().part_number_marker(first.next_part_number_marker().unwrap()).send().await.unwrap();
    assert_eq!((rest.parts().len(), rest.is_truncated()), (1, Some(false)));
    assert_eq!((rest.parts()[0].part_number(), rest.parts()[0].size()), (Some(9), Some(4)));
    let pending = &server.pending_uploads()[0];
    assert_eq!((pending.part_numbers.as_slice(), pending.part_bytes), (&[1, 2, 5, 9][..], 16));
}
