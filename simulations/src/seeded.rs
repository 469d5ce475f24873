//! Seeds what the libraries draw from the system: TLS keys, hash keys, tokio's order of polling. In the simulator's binary only.
//!
//! Where there is a seam, Warren takes its seed through it. These have none: ring draws keys with the `getrandom` system call, std and tokio draw hash seeds
//! with libc's `getrandom`. The linker prefers this binary's functions to libc's; on a thread that is seeded they answer from its generator, elsewhere they pass
//! the call on.

// Replacing functions of libc means exporting symbols and calling through pointers. The rest of the workspace has no part in it.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::{CStr, c_int, c_long, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

thread_local! {
    static STATE: Cell<Option<u64>> = const { Cell::new(None) };
}

/// From now on this thread's system randomness comes from the seed.
pub fn seed(seed: u64) {
    STATE.with(|state| state.set(Some(seed)));
}

/// Fills a buffer from the thread's generator (SplitMix64), if it is seeded.
///
/// # Safety
/// `buffer` must be valid for writes of `len` bytes.
unsafe fn fill(buffer: *mut u8, len: usize) -> bool {
    // While a thread ends there is no state any more: then the system answers.
    STATE
        .try_with(|state| {
            let Some(mut x) = state.get() else {
                return false;
            };
            for place in 0..len {
                x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
                let mut z = x;
                z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                // SAFETY: the caller vouches for the buffer.
                unsafe { buffer.add(place).write((z ^ (z >> 31)) as u8) };
            }
            state.set(Some(x));
            true
        })
        .unwrap_or(false)
}

/// libc's own function of a name.
fn next(cache: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    let known = cache.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // SAFETY: `name` is a C string, and RTLD_NEXT asks for the next definition after this binary's.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    assert!(!found.is_null(), "libc has no {name:?}");
    cache.store(found, Ordering::Relaxed);
    found
}

type GetRandom = unsafe extern "C" fn(*mut c_void, usize, u32) -> isize;
type Syscall =
    unsafe extern "C" fn(c_long, c_long, c_long, c_long, c_long, c_long, c_long) -> c_long;

/// In place of libc's.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrandom(buffer: *mut c_void, len: usize, flags: u32) -> isize {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's contract is the caller's, and its function has this type.
    unsafe {
        if fill(buffer.cast(), len) {
            return len as isize;
        }
        std::mem::transmute::<*mut c_void, GetRandom>(next(&NEXT, c"getrandom"))(buffer, len, flags)
    }
}

/// In place of libc's.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getentropy(buffer: *mut c_void, len: usize) -> c_int {
    // SAFETY: libc's contract is the caller's.
    if unsafe { getrandom(buffer, len, 0) } == len as isize {
        0
    } else {
        -1
    }
}

/// In place of libc's. It takes any number of arguments, of which a call has six at most; passing on more than the caller gave does no harm.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    static NEXT: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    // SAFETY: libc's contract is the caller's; for getrandom, `a` is a buffer of `b` bytes.
    unsafe {
        if number == libc::SYS_getrandom && b > 0 && fill(a as *mut u8, b as usize) {
            return b;
        }
        std::mem::transmute::<*mut c_void, Syscall>(next(&NEXT, c"syscall"))(
            number, a, b, c, d, e, f,
        )
    }
}
