use super::*;
use crate::soundness::{Soundness, judged};

fn read_bytes(bytes: &[u8]) -> Result<Pickle, Fault> {
    read_whole(&bytes.to_vec(), 0..bytes.len() as u64, Keep::Values)
}

fn refusal(bytes: &[u8]) -> (Option<u64>, String) {
    for keep in [Keep::Values, Keep::Shape] {
        let outcome = read_whole(&bytes.to_vec(), 0..bytes.len() as u64, keep);
        match judged(outcome.map(drop)).unwrap() {
            Soundness::Broken { offset, why } if keep == Keep::Shape => return (offset, why),
            Soundness::Broken { .. } => {}
            other => panic!("not broken: {other:?}"),
        }
    }
    unreachable!()
}

/// What Python itself writes of
/// `{'a': [1, -2, 3.5, True, None, 'k', (1, 2), (), 300, 70000, 2**40, 2**70, -2**70, -1], 'b': {'c': b'xy'}}`
/// in each protocol.
#[test]
fn every_protocol_says_the_same() {
    let samples: [&[u8]; 6] = [
        b"(dp0\nVa\np1\n(lp2\nI1\naI-2\naF3.5\naI01\naNaVk\np3\na(I1\nI2\ntp4\na(taI300\naI70000\naL109951\
          1627776L\naL1180591620717411303424L\naL-1180591620717411303424L\naI-1\nasVb\np5\n(dp6\nVc\np7\nc\
          _codecs\nencode\np8\n(Vxy\np9\nVlatin1\np10\ntp11\nRp12\nss.",
        b"}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\x00I01\nNX\
          \x01\x00\x00\x00kq\x03(K\x01K\x02tq\x04)M,\x01Jp\x11\x01\x00L1099511627776L\nL118059162071741130\
          3424L\nL-1180591620717411303424L\nJ\xff\xff\xff\xffeX\x01\x00\x00\x00bq\x05}q\x06X\x01\x00\x00\
          \x00cq\x07c_codecs\nencode\nq\x08(X\x02\x00\x00\x00xyq\x09X\x06\x00\x00\x00latin1q\ntq\x0bRq\x0c\
          su.",
        b"\x80\x02}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\
          \x00\x88NX\x01\x00\x00\x00kq\x03K\x01K\x02\x86q\x04)M,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\
          \x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0J\
          \xff\xff\xff\xffeX\x01\x00\x00\x00bq\x05}q\x06X\x01\x00\x00\x00cq\x07c_codecs\nencode\nq\x08X\
          \x02\x00\x00\x00xyq\x09X\x06\x00\x00\x00latin1q\n\x86q\x0bRq\x0csu.",
        b"\x80\x03}q\x00(X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x0c\x00\x00\x00\x00\x00\
          \x00\x88NX\x01\x00\x00\x00kq\x03K\x01K\x02\x86q\x04)M,\x01Jp\x11\x01\x00\x8a\x06\x00\x00\x00\x00\
          \x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\xc0J\
          \xff\xff\xff\xffeX\x01\x00\x00\x00bq\x05}q\x06X\x01\x00\x00\x00cq\x07C\x02xyq\x08su.",
        b"\x80\x04\x95e\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x0c\
          \x00\x00\x00\x00\x00\x00\x88N\x8c\x01k\x94K\x01K\x02\x86\x94)M,\x01Jp\x11\x01\x00\x8a\x06\x00\
          \x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@\x8a\x09\x00\x00\x00\x00\x00\x00\
          \x00\x00\xc0J\xff\xff\xff\xffe\x8c\x01b\x94}\x94\x8c\x01c\x94C\x02xy\x94su.",
        b"\x80\x05\x95e\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x0c\
          \x00\x00\x00\x00\x00\x00\x88N\x8c\x01k\x94K\x01K\x02\x86\x94)M,\x01Jp\x11\x01\x00\x8a\x06\x00\
          \x00\x00\x00\x00\x01\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@\x8a\x09\x00\x00\x00\x00\x00\x00\
          \x00\x00\xc0J\xff\xff\xff\xffe\x8c\x01b\x94}\x94\x8c\x01c\x94C\x02xy\x94su.",
    ];
    for (protocol, bytes) in samples.into_iter().enumerate() {
        let pickle = read_bytes(bytes).unwrap();
        assert_eq!(pickle.end, bytes.len() as u64);
        let list = pickle.entry(pickle.root, "a").unwrap();
        let elements = pickle.elements(list).unwrap();
        assert_eq!(
            elements[..5],
            [Value::Integer(1), Value::Integer(-2), Value::Scalar, Value::Bool(true), Value::None,]
        );
        assert_eq!(pickle.text(elements[5]), Some("k"));
        assert_eq!(pickle.elements(elements[6]).unwrap(), [Value::Integer(1), Value::Integer(2)]);
        assert_eq!(pickle.elements(elements[7]).unwrap(), []);
        let integers: Vec<_> = elements[8..].iter().map(|value| pickle.integer(*value)).collect();
        let expected = [300, 70_000, 1 << 40, 1 << 70, -(1 << 70), -1].map(Some);
        assert_eq!(integers, expected, "protocol {protocol}");
        let inner = pickle.entry(pickle.root, "b").unwrap();
        let bytes_value = pickle.entry(inner, "c").unwrap();
        if protocol < 3 {
            // Bytes had no instruction yet: a call makes them of a text.
            let call = pickle.call(bytes_value).unwrap();
            assert_eq!(pickle.global(call.callable), Some(("_codecs", "encode")));
        } else {
            assert_eq!(bytes_value, Value::Scalar);
        }
        assert!(read_whole(&bytes.to_vec(), 0..bytes.len() as u64, Keep::Shape).is_ok());
    }
}

#[test]
fn every_sample_cut_anywhere_is_cut_off() {
    let bytes =
        b"\x80\x05\x95!\x00\x00\x00\x00\x00\x00\x00]\x94(\x8f\x94(K\x03\x90(K\x04\x91\x94\x96\x01\x00\x00\
          \x00\x00\x00\x00\x00y\x94\x8c\x03xxx\x94e.";
    let pickle = read_bytes(bytes).unwrap();
    let elements = pickle.elements(pickle.root).unwrap();
    assert_eq!(pickle.object(elements[0]), Some(&Object::Set(vec![Value::Integer(3)])));
    assert_eq!(pickle.object(elements[1]), Some(&Object::Set(vec![Value::Integer(4)])));
    assert_eq!(elements[2], Value::Scalar);
    assert_eq!(pickle.text(elements[3]), Some("xxx"));
    for length in 0..bytes.len() {
        let (_, why) = refusal(&bytes[..length]);
        assert!(why.contains("cut off"), "{length}: {why}");
    }
}

#[test]
fn state_is_set_on_what_is_filled_like_a_dictionary() {
    let pickle = read_bytes(
        b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01X\x01\x00\x00\x00kK\x01s}X\x01\x00\x00\x00mK\x02sb.",
    );
    let pickle = pickle.unwrap();
    assert_eq!(pickle.entry(pickle.root, "k"), Some(Value::Integer(1)));
    let call = pickle.call(pickle.root).unwrap();
    assert_eq!(pickle.global(call.callable), Some(("collections", "OrderedDict")));
    assert_eq!(pickle.entry(call.state, "m"), Some(Value::Integer(2)));
}

#[test]
fn what_is_shared_is_filled_once_for_all() {
    // A list, put into slot 0, recalled twice into a tuple, and appended to through the last of them.
    let pickle = read_bytes(b"\x80\x04]\x94h\x00h\x00K\x07a\x87.").unwrap();
    let elements = pickle.elements(pickle.root).unwrap();
    assert_eq!(elements[0], elements[1]);
    assert_eq!(pickle.elements(elements[0]).unwrap(), [Value::Integer(7)]);
}

#[test]
fn calls_in_every_spelling_are_written_down() {
    let global = |bytes: &[u8]| {
        let pickle = read_bytes(bytes).unwrap();
        let call = pickle.call(pickle.root).unwrap();
        let (module, name) = pickle.global(call.callable).unwrap();
        (format!("{module}.{name}"), pickle.elements(call.arguments).unwrap().to_vec())
    };
    let expected = ("m.C".to_owned(), vec![Value::Integer(7)]);
    for bytes in [
        b"cm\nC\n(K\x07tR.".as_slice(),
        b"(K\x07im\nC\n.",
        b"(cm\nC\nK\x07o.",
        b"\x80\x02cm\nC\nK\x07\x85\x81.",
        b"\x80\x04\x8c\x01m\x8c\x01C\x93K\x07\x85}\x92.",
    ] {
        assert_eq!(global(bytes), expected);
    }
    // A call may return a class, and what stands for a persistent id may be one.
    assert!(read_bytes(b"cm\nC\n)R)R.").is_ok());
    assert!(read_bytes(b"Pid\n)R.").is_ok());
}

#[test]
fn persistent_ids_and_what_only_their_process_knows() {
    let pickle = read_bytes(b"(Pone\nK\x02Q\x82\x01\x83\x01\x00\x84\x01\x00\x00\x00\x97\x98t.").unwrap();
    let elements = pickle.elements(pickle.root).unwrap();
    let Some(Object::Persistent(id)) = pickle.object(elements[0]) else { panic!() };
    assert_eq!(pickle.text(*id), Some("one"));
    assert_eq!(pickle.object(elements[1]), Some(&Object::Persistent(Value::Integer(2))));
    assert_eq!(elements[2..], [Value::Unknown; 4]);
}

fn assert_refused(cases: &[(&[u8], u64, &str)]) {
    for (bytes, offset, why) in cases {
        assert_eq!(refusal(bytes), (Some(*offset), (*why).to_owned()), "{bytes:?}");
    }
}

#[test]
fn what_ends_too_soon_or_takes_what_is_not_there() {
    assert_refused(&[
        (b"", 0, "the pickle is cut off: it ends before its STOP"),
        (b"\x80\x02}", 3, "the pickle is cut off: it ends before its STOP"),
        (b"\x80\x06N.", 0, "the pickle's PROTO declares pickle protocol 6, and the newest is 5"),
        (b"N\xff.", 1, "byte 0xff is not a pickle instruction"),
        (b".", 0, "the pickle's STOP takes a value from an empty stack"),
        (b"NN.", 2, "the pickle's STOP ends the pickle with 1 values left over"),
        (b"N(.", 2, "the pickle's STOP takes a value from an empty stack"),
        (b"t.", 0, "the pickle's TUPLE closes a group that was never opened"),
        (b"N\x86.", 1, "the pickle's TUPLE2 takes a value from an empty stack"),
        (b"h\x07.", 0, "the pickle's BINGET reads memo slot 7, which was never written"),
        (b"gx\n.", 0, "the pickle's GET names a memo slot by something other than a number"),
    ]);
}

#[test]
fn lengths_numbers_and_texts_that_cannot_be() {
    assert_refused(&[
        (b"X\x05\x00\x00\x00ab.", 5, "the pickle is cut off: 5 bytes should follow, and 3 do"),
        (b"T\xff\xff\xff\xff.", 0, "the pickle's BINSTRING has a length of -1 bytes"),
        (b"\x8c\x02\xc3\x28.", 0, "the pickle's SHORT_BINUNICODE holds text that is not UTF-8"),
        (b"I12x\n.", 0, "the pickle's INT holds \"12x\", which is not an integer"),
        (b"Fx\n.", 0, "the pickle's FLOAT holds \"x\", which is not a number"),
        (b"Sabc\n.", 0, "the pickle's STRING holds a string without quotes"),
        (b"cm\n\n.", 0, "the pickle's GLOBAL names a class by an empty name"),
        (b"NN\x93.", 2, "the pickle's STACK_GLOBAL names a class by values that are not two strings"),
    ]);
}

#[test]
fn calls_and_containers_that_do_not_fit() {
    assert_refused(&[
        (b"K\x01)R.", 3, "the pickle's REDUCE calls a value that is not a class or function"),
        (b"cm\nC\nK\x01R.", 7, "the pickle's REDUCE calls with arguments that are not a tuple"),
        (
            b"cm\nC\n)N\x92.",
            7,
            "the pickle's NEWOBJ_EX creates an object with keyword arguments that are not a dictionary",
        ),
        (b"(o.", 1, "the pickle's OBJ creates an object without a class"),
        (b"]}b.", 2, "the pickle's BUILD sets the state of a value that has none"),
        (b"}Na.", 2, "the pickle's APPEND adds items to a value that is not a list or set"),
        (b"]NNs.", 3, "the pickle's SETITEM adds entries to a value that is not a dictionary"),
        (b"}(Nu.", 3, "the pickle's SETITEMS has a key without a value"),
    ]);
}

#[test]
fn frames_hold_whole_instructions() {
    assert_refused(&[
        (
            b"\x95\x09\x00\x00\x00\x00\x00\x00\x00N.",
            0,
            "the pickle's FRAME needs 9 more bytes, and 2 remain: the pickle is cut off",
        ),
        (
            b"\x95\x01\x00\x00\x00\x00\x00\x00\x00K\x01.",
            9,
            "the pickle's BININT1 extends beyond the end of its frame at byte 10",
        ),
        (
            b"\x95\x03\x00\x00\x00\x00\x00\x00\x00N.N",
            10,
            "the pickle's STOP ends the pickle inside an unfinished frame",
        ),
        (
            b"\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x95\x02\x00\x00\x00\x00\x00\x00\x00N.",
            9,
            "the pickle's FRAME begins a frame inside another",
        ),
    ]);
}

#[test]
fn nothing_follows_the_end() {
    assert_refused(&[(b"N.xyz", 2, "3 unexpected bytes follow the end of the pickle")]);
}

#[test]
fn offsets_are_of_the_file() {
    let bytes = b"before h\x07. after".to_vec();
    let outcome = read(&bytes, 7..bytes.len() as u64, Keep::Values).map(drop);
    assert_eq!(
        judged(outcome).unwrap(),
        Soundness::Broken {
            offset: Some(7),
            why: "the pickle's BINGET reads memo slot 7, which was never written".to_owned()
        }
    );
    assert!(read(&bytes, 7..99, Keep::Values).is_err());
}

#[test]
fn long_texts_are_gone_over() {
    let length = u32::try_from(MAX_TEXT_BYTES + 1).unwrap();
    let mut bytes = b"(X".to_vec();
    bytes.extend(length.to_le_bytes());
    bytes.resize(bytes.len() + length as usize, 0xff);
    bytes.extend(b"X\x02\x00\x00\x00okt.");
    let pickle = read_bytes(&bytes).unwrap();
    let elements = pickle.elements(pickle.root).unwrap();
    assert_eq!(elements[0], Value::Scalar);
    assert_eq!(pickle.text(elements[1]), Some("ok"));
    assert!(pickle.kept_bytes < 1024);
}

/// Lone surrogates are what Python makes of file names that are no text.
#[test]
fn a_lone_surrogate_is_no_fault() {
    let pickle = read_bytes(b"\x8c\x03\xed\xb3\xbf.").unwrap();
    assert_eq!(pickle.root, Value::Scalar);
}

#[test]
fn depth_costs_no_stack() {
    const DEPTH: usize = 1_000_000;
    let mut bytes = b")".to_vec();
    bytes.resize(DEPTH, 0x85);
    bytes.push(b'.');
    let pickle = read_bytes(&bytes).unwrap();
    assert_eq!(pickle.clone().objects().count(), DEPTH);
    let mut marks = vec![b'('; DEPTH];
    marks.push(b')');
    marks.resize(2 * DEPTH + 1, b't');
    marks.push(b'.');
    assert_eq!(read_bytes(&marks).unwrap().objects().count(), DEPTH + 1);
}

/// Each list holds the one before it ten times: 10^1000 values, if anything copied them.
#[test]
fn sharing_costs_nothing() {
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for level in 0..1000_u32 {
        bytes.extend(b"](");
        for _ in 0..10 {
            bytes.push(opcode::LONG_BINGET);
            bytes.extend(level.to_le_bytes());
        }
        bytes.extend(b"e\x94");
    }
    bytes.extend(b"2\x93");
    let (_, why) = refusal(&bytes);
    assert_eq!(why, "the pickle's STACK_GLOBAL names a class by values that are not two strings");
    bytes.truncate(bytes.len() - 2);
    // The lists below the last one are still on the stack.
    bytes.splice(2..2, *b"(");
    bytes.extend(b"t.");
    let pickle = read_bytes(&bytes).unwrap();
    assert_eq!(pickle.objects().count(), 1002);
}

#[test]
fn what_is_kept_stays_in_proportion() {
    for unit in [b"]".as_slice(), b")R", b"\x94", b"N", b"(", b")\x85", b"}", b"2"] {
        let mut bytes = b"cm\nC\n".to_vec();
        bytes.extend(unit.iter().copied().cycle().take(unit.len() * 10_000));
        // Cut off, so that what was kept is what the machine had when it stopped.
        let mut machine = machine::Machine::new(&bytes, 0..bytes.len() as u64, Keep::Values).unwrap();
        let kept_bytes = machine.kept_bytes_when_cut_off();
        assert!(kept_bytes <= KEPT_BYTES_PER_INPUT_BYTE * bytes.len() as u64, "{unit:?}: {kept_bytes}");
        assert!(kept_bytes > 0);
    }
}

/// Ten million numbers in a list cost nothing where only the shape is asked for.
#[test]
fn the_shape_alone_takes_no_room() {
    let mut bytes = b"]".to_vec();
    for _ in 0..1000 {
        bytes.push(b'(');
        bytes.extend(b"K\x01}".repeat(1000));
        bytes.push(b'e');
    }
    bytes.push(b'.');
    let shape = read_whole(&bytes, 0..bytes.len() as u64, Keep::Shape).unwrap();
    assert!(shape.kept_bytes < 1024, "{}", shape.kept_bytes);
    let values = read_bytes(&bytes).unwrap();
    assert_eq!(values.elements(values.root).unwrap().len(), 2_000_000);
    assert!(values.kept_bytes > 2_000_000 * 16);
}
