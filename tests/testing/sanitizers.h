// REPRISE_SANITIZED: built with AddressSanitizer or ThreadSanitizer, which g++ and clang++ say in different ways.
#ifndef REPRISE_TESTS_TESTING_SANITIZERS_H_
#define REPRISE_TESTS_TESTING_SANITIZERS_H_

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPRISE_SANITIZED
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPRISE_SANITIZED
#endif
#endif

#endif  // REPRISE_TESTS_TESTING_SANITIZERS_H_
