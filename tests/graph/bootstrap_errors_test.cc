// What goes wrong while ranks meet or exchange: a reason on every rank that can be told, and never a hang.
#include "graph/comm/bootstrap.h"
#include "graph/comm/find_rank0.h"
#include "graph/comm/rendezvous_file.h"
#include "tests/graph/bootstrap_testing.h"
#include "tests/testing/status_matchers.h"

namespace reprise::testing {
namespace {

using internal::Bootstrap;
using internal::FileDescriptor;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatient = absl::Seconds(60);
constexpr absl::Duration kShort = absl::Milliseconds(300);

// ---- while ranks meet ----

class MeetingTest : public ::testing::TestWithParam<Meeting> {
 protected:
  TestJob Job(int size) const { return {.meeting = GetParam(), .size = size}; }
};
INSTANTIATE_TEST_SUITE_P(, MeetingTest, ::testing::Values(Meeting::kByFile, Meeting::kByPort),
                         [](const ::testing::TestParamInfo<Meeting>& info) {
                           return info.param == Meeting::kByFile ? "ByFile" : "ByPort";
                         });

TEST_P(MeetingTest, EveryRankHearsWhoIsMissing) {
  const TestJob job = Job(4);
  const auto verdict = StatusIs(absl::StatusCode::kDeadlineExceeded,
                                AllOf(HasSubstr("ranks 1, 3 of 4 did not connect"), HasSubstr(";")));
  EXPECT_THAT(ConnectAll({job.Rank(0), job.Rank(2)}, absl::Seconds(1)), ElementsAre(verdict, verdict));
  EXPECT_TRUE(std::filesystem::is_empty(job.directory.path()));
}

TEST_P(MeetingTest, WithoutRank0TheOthersSayWhereTheyLooked) {
  const TestJob job = Job(2);
  const auto where =
      HasSubstr(GetParam() == Meeting::kByFile ? job.directory.path() : absl::StrCat("ports ", job.port));
  EXPECT_THAT(
      Bootstrap::Connect(job.Rank(1), kShort),
      StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("rank 1 of 2 did not find rank 0"), where)));
}

TEST_P(MeetingTest, ASecondProcessOfARankThatComesAfterAllMetHearsThatItMayBeOne) {
  const TestJob job = Job(3);
  const std::vector<Connected> all = ConnectAll(AllRanks(job), kPatient);
  ASSERT_THAT(all, Each(IsOk()));
  EXPECT_THAT(Bootstrap::Connect(job.Rank(1), kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("rank 1 of 3 did not find rank 0"),
                             HasSubstr("if rank 0 met all ranks before this process came, two processes are rank 1: "
                                       "start every rank once"))));
  EXPECT_THAT(Bootstrap::Connect(job.Rank(0), kShort),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("ranks 1, 2 of 3 did not connect"),
                             HasSubstr("if the others met another rank 0 before this process came, start every rank "
                                       "once"))));
}

TEST_P(MeetingTest, AWrongWorldSizeEndsAllRanks) {
  const TestJob job = Job(3);
  LaunchEnvironment wrong = job.Rank(1);
  wrong.size = wrong.local_size = 5;
  const auto verdict = StatusIs(absl::StatusCode::kFailedPrecondition,
                                AllOf(HasSubstr("rank 1 at "), HasSubstr("world size 5, rank 0 has 3")));
  EXPECT_THAT(ConnectAll({job.Rank(0), wrong, job.Rank(2)}, kPatient), ElementsAre(verdict, verdict, verdict));
}

TEST_P(MeetingTest, ADuplicateRankEndsAllRanks) {
  const TestJob job = Job(3);
  const auto verdict = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("two processes are rank 1 of 3"));
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job.Rank(0), kPatient); });
  EXPECT_THAT(ConnectAll({job.Rank(1), job.Rank(1)}, kPatient), Each(verdict));
  EXPECT_THAT(Bootstrap::Connect(job.Rank(2), kPatient), verdict);
  thread.join();
  EXPECT_THAT(rank0, verdict);
}

TEST_P(MeetingTest, ASecondRank0EndsAllRanks) {
  const TestJob job = Job(3);
  const auto verdict = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("two processes are rank 0 of 3"));
  Connected first;
  std::thread thread([&] { first = Bootstrap::Connect(job.Rank(0), kPatient); });
  if (GetParam() == Meeting::kByPort) {
    ConnectWhenListening(job.port);
  } else {
    while (std::filesystem::is_empty(job.directory.path())) absl::SleepFor(absl::Milliseconds(1));
    absl::SleepFor(absl::Milliseconds(50));
  }
  EXPECT_THAT(Bootstrap::Connect(job.Rank(0), kPatient), verdict);
  EXPECT_THAT(ConnectAll({job.Rank(1), job.Rank(2)}, kPatient), Each(verdict));
  thread.join();
  EXPECT_THAT(first, verdict);
}

TEST_P(MeetingTest, ARankNumberBeyondTheSizeEndsAllRanks) {
  TestJob job = Job(2);
  job.meeting = Meeting::kByPort;
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job.Rank(0), kPatient); });
  const FileDescriptor socket = ConnectWhenListening(job.port);
  ASSERT_TRUE(internal::SendNow(socket, HelloBytes(job.Rank(7))));
  const auto verdict = StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("rank 7 at "));
  EXPECT_THAT(Bootstrap::Connect(job.Rank(1), kPatient), verdict);
  thread.join();
  EXPECT_THAT(rank0, verdict);
}

// ---- strangers ----

class StrangersTest : public ::testing::Test {
 protected:
  TestJob job_ = {.meeting = Meeting::kByPort};

  // Rank 0 listens; strangers do what they do; rank 1 comes; all is well.
  void ExpectUndisturbed(const std::function<void(std::vector<FileDescriptor>&)>& disturb) {
    Connected rank0;
    std::thread thread([&] { rank0 = Bootstrap::Connect(job_.Rank(0), kPatient); });
    std::vector<FileDescriptor> strangers;
    disturb(strangers);
    EXPECT_THAT(Bootstrap::Connect(job_.Rank(1), kPatient), IsOk());
    thread.join();
    EXPECT_THAT(rank0, IsOk());
  }
};

TEST_F(StrangersTest, WhoSaysNothingHoldsNothingUp) {
  ExpectUndisturbed([&](std::vector<FileDescriptor>& strangers) {
    for (int i = 0; i < 300; ++i) strangers.push_back(ConnectWhenListening(job_.port));
  });
}

TEST_F(StrangersTest, WhoClosesAtOnceIsForgotten) {
  ExpectUndisturbed([&](std::vector<FileDescriptor>&) {
    for (int i = 0; i < 50; ++i) ConnectWhenListening(job_.port);
  });
}

TEST_F(StrangersTest, WhoSendsSomethingElseIsTurnedAway) {
  ExpectUndisturbed([&](std::vector<FileDescriptor>& strangers) {
    for (const std::string& bytes :
         {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(100000, '\xff'), std::string("R")}) {
      strangers.push_back(ConnectWhenListening(job_.port));
      internal::SendNow(strangers.back(), bytes);
      if (bytes.size() == 1) continue;  // may become a hello
      EXPECT_EQ(ReadBytes(strangers.back(), 1), "") << "closed, without an answer";
    }
  });
}

TEST_F(StrangersTest, AHelloInPiecesIsOne) {
  job_.size = 3;
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job_.Rank(0), kPatient); });
  const FileDescriptor slow = ConnectWhenListening(job_.port);
  for (const char c : HelloBytes(job_.Rank(2))) {
    ASSERT_TRUE(internal::SendNow(slow, std::string(1, c)));
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_THAT(Bootstrap::Connect(job_.Rank(1), kPatient), IsOk());
  thread.join();
  EXPECT_THAT(rank0, IsOk());
}

TEST_F(StrangersTest, ARankThatDidNotWaitForTheAnswerMayComeAgain) {
  ExpectUndisturbed([&](std::vector<FileDescriptor>&) {
    const FileDescriptor early = ConnectWhenListening(job_.port);
    ASSERT_TRUE(internal::SendNow(early, HelloBytes(job_.Rank(1)).substr(0, sizeof(internal::Greeting))));
    EXPECT_EQ(ReadBytes(early, sizeof(internal::Greeting)).size(), sizeof(internal::Greeting));
  });
}

TEST_F(StrangersTest, ARankThatLeftIsReported) {
  job_.size = 3;
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job_.Rank(0), kShort); });
  FileDescriptor early = ConnectWhenListening(job_.port);
  ASSERT_TRUE(internal::SendNow(early, HelloBytes(job_.Rank(1))));
  EXPECT_EQ(ReadBytes(early, sizeof(internal::Greeting)).size(), sizeof(internal::Greeting));
  absl::SleepFor(absl::Milliseconds(100));
  early.Close();
  thread.join();
  EXPECT_THAT(rank0, StatusIs(absl::StatusCode::kDeadlineExceeded, AllOf(HasSubstr("ranks 1, 2 of 3 did not connect"),
                                                                         HasSubstr("(rank 1 came and left)"))));
}

TEST_F(StrangersTest, ARankOfAnotherJobIsToldSo) {
  ExpectUndisturbed([&](std::vector<FileDescriptor>& strangers) {
    LaunchEnvironment other = job_.Rank(1);
    other.job = "other";
    strangers.push_back(ConnectWhenListening(job_.port));
    ASSERT_TRUE(internal::SendNow(strangers.back(), HelloBytes(other)));
    EXPECT_EQ(ReadBytes(strangers.back(), 1000).size(), sizeof(internal::Greeting)) << "a greeting, then closed";
  });
}

TEST_F(StrangersTest, PortsTakenByOthersArePassedOver) {
  // As torchrun's own store: one accepts and says nothing, one speaks, one closes.
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor silent, Listen(internal::Reach::kThisHost, job_.port));
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor speaking, Listen(internal::Reach::kThisHost, job_.port + 1));
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor closing, Listen(internal::Reach::kEveryHost, job_.port + 2));
  std::atomic<bool> done = false;
  std::thread others([&] {
    std::vector<FileDescriptor> kept;
    while (!done) {
      internal::Address address;
      absl::StatusOr<FileDescriptor> guest = internal::Accept(speaking, address);
      if (guest.ok()) {
        internal::SendNow(*guest, std::string(sizeof(internal::Greeting), 'x'));
        kept.push_back(*std::move(guest));
      }
      internal::Accept(closing, address).IgnoreError();
      absl::SleepFor(absl::Milliseconds(2));
    }
  });
  for (const Connected& connected : ConnectAll(AllRanks(job_), kPatient)) EXPECT_THAT(connected, IsOk());
  done = true;
  others.join();
}

TEST_F(StrangersTest, NoFreePortIsUnavailable) {
  job_.port = 65535;
  const absl::StatusOr<FileDescriptor> taken = Listen(internal::Reach::kThisHost, 65535);
  EXPECT_THAT(Bootstrap::Connect(job_.Rank(0), kPatient),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ports 65535 to 65535")));
}

// ---- versions ----

TEST_F(StrangersTest, Rank0NamesBothVersions) {
  Connected rank0;
  std::thread thread([&] { rank0 = Bootstrap::Connect(job_.Rank(0), kPatient); });
  const FileDescriptor socket = ConnectWhenListening(job_.port);
  // A later version may say more or less than ours after its greeting.
  ASSERT_TRUE(internal::SendNow(socket, HelloBytes(job_.Rank(1), 77).substr(0, sizeof(internal::Greeting))));
  EXPECT_THAT(Bootstrap::Connect(job_.Rank(1), kPatient),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("version 77")));
  thread.join();
  EXPECT_THAT(rank0, StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr("rank 1 speaks version 77"),
                                    HasSubstr(absl::StrCat("rank 0 version ", internal::kProtocolVersion)))));
}

TEST_F(StrangersTest, AnotherRankNamesBothVersions) {
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor listener, Listen(internal::Reach::kThisHost, job_.port));
  Connected rank1;
  std::thread thread([&] { rank1 = Bootstrap::Connect(job_.Rank(1), kPatient); });
  internal::PollOne(listener.get(), POLLIN, internal::Deadline(kPatient));
  internal::Address address;
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor socket, internal::Accept(listener, address));
  EXPECT_EQ(ReadBytes(socket, sizeof(internal::Greeting)),
            HelloBytes(job_.Rank(1)).substr(0, sizeof(internal::Greeting)));
  internal::Greeting greeting = internal::MakeGreeting(internal::kRank0Magic, 0, internal::NonceOf(job_.Rank(1)));
  greeting.version = internal::kProtocolVersion + 1;
  ASSERT_TRUE(internal::SendNow(socket, {reinterpret_cast<const char*>(&greeting), sizeof(greeting)}));
  thread.join();
  EXPECT_THAT(rank1, StatusIs(absl::StatusCode::kFailedPrecondition,
                              AllOf(HasSubstr(absl::StrCat("rank 0 speaks version ", internal::kProtocolVersion + 1)),
                                    HasSubstr(absl::StrCat("rank 1 version ", internal::kProtocolVersion)))));
}

// ---- the file ----

TEST(RendezvousFileTest, OneOfAKilledJobIsNotBelieved) {
  const TestJob job;
  const std::string path = internal::RendezvousPath(job.Rank(0));
  // At a port where nobody listens; at one where somebody else does.
  REPRISE_ASSERT_OK_AND_ASSIGN(const FileDescriptor listener, Listen(internal::Reach::kThisHost, 0));
  REPRISE_ASSERT_OK_AND_ASSIGN(const internal::Address address, LocalAddress(listener));
  for (const int port : {1, PortOf(address)}) {
    ASSERT_THAT(internal::Publish(path, {.port = port, .nonce = {1, 2}}), IsOk());
    Connected rank1;
    std::thread early([&] { rank1 = Bootstrap::Connect(job.Rank(1), kPatient); });
    absl::SleepFor(absl::Milliseconds(50));
    EXPECT_THAT(Bootstrap::Connect(job.Rank(0), kPatient), IsOk());
    early.join();
    EXPECT_THAT(rank1, IsOk());
    EXPECT_FALSE(std::filesystem::exists(path));
  }
}

TEST(RendezvousFileTest, MustBeThisUsersAlone) {
  const TestJob job;
  const std::string path = internal::RendezvousPath(job.Rank(0));
  EXPECT_THAT(internal::ReadRendezvous(path), StatusIs(absl::StatusCode::kNotFound, HasSubstr(path)));
  ASSERT_THAT(internal::Publish(path, {.port = 5, .nonce = {1, 2}}), IsOk());
  REPRISE_ASSERT_OK_AND_ASSIGN(const internal::Rendezvous read, internal::ReadRendezvous(path));
  EXPECT_EQ(read.port, 5);
  EXPECT_TRUE((read.nonce == internal::Nonce{1, 2}));

  std::filesystem::permissions(path, std::filesystem::perms::group_read, std::filesystem::perm_options::add);
  EXPECT_THAT(internal::ReadRendezvous(path), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr("remove it")));
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/etc/passwd", path);
  EXPECT_THAT(internal::ReadRendezvous(path), StatusIs(absl::StatusCode::kPermissionDenied, HasSubstr(path)));
  // Publishing replaces it, and what it pointed to is left alone.
  ASSERT_THAT(internal::Publish(path, {.port = 5, .nonce = {1, 2}}), IsOk());
  EXPECT_THAT(internal::ReadRendezvous(path), IsOk());
  // That of another rank 0 is not withdrawn.
  internal::Withdraw(path, {.port = 5, .nonce = {1, 3}});
  EXPECT_TRUE(std::filesystem::exists(path));
}

// ---- during exchanges ----

// Two or more connected ranks whose exchanges have a short deadline.
std::vector<std::unique_ptr<Bootstrap>> ConnectedRanks(const TestJob& job) {
  std::vector<std::unique_ptr<Bootstrap>> ranks;
  for (Connected& connected : ConnectAll(AllRanks(job), kPatient)) {
    EXPECT_THAT(connected, IsOk());
    if (!connected.ok()) return {};
    (*connected)->set_deadline(kShort);
    ranks.push_back(*std::move(connected));
  }
  return ranks;
}

class ExchangeTest : public ::testing::TestWithParam<Meeting> {};
INSTANTIATE_TEST_SUITE_P(, ExchangeTest, EveryConnection(), NameOf);

TEST_P(ExchangeTest, EveryRankHearsWhoDidNotAnswer) {
  auto ranks = ConnectedRanks({.meeting = GetParam(), .size = 4});
  ASSERT_EQ(ranks.size(), 4u);
  const auto verdict = StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 2 of 4 did not answer"));
  InThreads(4, [&](int rank) {
    if (rank == 2) return;
    EXPECT_THAT(ranks[rank]->Exchange("parts", "x"), verdict);
    EXPECT_THAT(ranks[rank]->Exchange("parts", "x"), verdict) << "the first error is repeated";
  });
  EXPECT_THAT(ranks[2]->Exchange("parts", "x"), verdict) << "the late rank hears that it was late";
}

TEST_P(ExchangeTest, EveryRankHearsWhoLeft) {
  auto ranks = ConnectedRanks({.meeting = GetParam(), .size = 4});
  ASSERT_EQ(ranks.size(), 4u);
  ranks[3] = nullptr;
  InThreads(3, [&](int rank) {
    EXPECT_THAT(ranks[rank]->Exchange("parts", std::string(1 << 20, 'x')),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 3 closed its connection")));
  });
}

TEST_P(ExchangeTest, EveryRankHearsThatRank0Left) {
  auto ranks = ConnectedRanks({.meeting = GetParam(), .size = 3});
  ASSERT_EQ(ranks.size(), 3u);
  ranks[0] = nullptr;
  InThreads(3, [&](int rank) {
    if (rank == 0) return;
    EXPECT_THAT(ranks[rank]->Exchange("parts", std::string(1 << 20, 'x')),
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 0 ")));
  });
}

TEST_P(ExchangeTest, WithoutRank0TheOthersStopWaiting) {
  auto ranks = ConnectedRanks({.meeting = GetParam(), .size = 2});
  ASSERT_EQ(ranks.size(), 2u);
  const auto verdict = StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 0 of 2 did not answer rank 1"));
  EXPECT_THAT(ranks[1]->Exchange("parts", "x"), verdict);
  // Rank 0 had what rank 1 sent first; its answer goes nowhere, and then it hears the reason.
  ranks[0]->Exchange("parts", "x").IgnoreError();
  EXPECT_THAT(ranks[0]->Exchange("parts", "x"), verdict);
}

TEST_P(ExchangeTest, TooManyBytesAreRefusedOnEveryRank) {
  auto ranks = ConnectedRanks({.meeting = GetParam(), .size = 3});
  ASSERT_EQ(ranks.size(), 3u);
  constexpr uint64_t kMaxBytes = 1000;
  for (auto& rank : ranks) rank->set_max_bytes(kMaxBytes);
  InThreads(3, [&](int rank) {
    const std::string mine(rank == 1 ? kMaxBytes + 1 : kMaxBytes, 'x');
    EXPECT_THAT(ranks[rank]->Exchange("parts", mine),
                StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("rank 1 gives 1001 bytes")));
  });
}

// A rank that met as it should and then sends anything.
class BadRankTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::vector<std::string>> ExchangeWith(const std::string& bytes) {
    const TestJob job = {.meeting = Meeting::kByPort};
    FileDescriptor bad;
    std::thread thread([&] {
      bad = ConnectWhenListening(job.port);
      internal::SendNow(bad, HelloBytes(job.Rank(1)));
      ReadBytes(bad, sizeof(internal::Greeting));
      internal::SendNow(bad, bytes);
    });
    Connected rank0 = Bootstrap::Connect(job.Rank(0), kPatient);
    thread.join();
    REPRISE_RETURN_IF_ERROR(rank0.status());
    (*rank0)->set_deadline(kShort);
    return (*rank0)->Exchange("parts", "x");
  }
  static std::string Header(uint32_t kind, uint64_t num_bytes) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &kind, sizeof(kind));
    std::memcpy(bytes.data() + 8, &num_bytes, sizeof(num_bytes));
    return bytes;
  }
  static constexpr uint32_t kData = static_cast<uint32_t>(internal::MessageKind::kData);
};

TEST_F(BadRankTest, AHostileLengthIsRefused) {
  EXPECT_THAT(ExchangeWith(Header(kData, ~uint64_t{0})),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 sent bytes that are no message")));
}
TEST_F(BadRankTest, AClaimedLengthTakesNoMemory) {
  EXPECT_THAT(ExchangeWith(Header(kData, uint64_t{8} << 30) + "few"),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 did not answer")));
}
TEST_F(BadRankTest, GarbageIsRefused) {
  EXPECT_THAT(ExchangeWith(std::string(64, 'z')),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 sent bytes")));
}
TEST_F(BadRankTest, HalfAMessageIsNone) {
  EXPECT_THAT(ExchangeWith(Header(kData, 3).substr(0, 9)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("rank 1 of 2 did not answer")));
}
TEST_F(BadRankTest, AMessageOfAKindThatDoesNotBelongIsRefused) {
  using Kind = internal::MessageKind;
  for (const auto& [kind, name] : {std::pair(Kind::kBegin, "a begin message"), std::pair(Kind::kAgreed, "an agreement"),
                                   std::pair(Kind::kAsk, "a question")}) {
    EXPECT_THAT(ExchangeWith(Header(static_cast<uint32_t>(kind), 3) + "abc"),
                StatusIs(absl::StatusCode::kInternal,
                         AllOf(HasSubstr("rank 1 sent"), HasSubstr(name), HasSubstr("does not belong here"))));
  }
}
TEST_F(BadRankTest, BytesThatDoNotSayWhatTheyAreAreRefused) {
  EXPECT_THAT(ExchangeWith(Header(kData, 3) + "abc"),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("rank 1 gave 3 bytes to an exchange")));
}
TEST_F(BadRankTest, AWholeMessageIsFine) {
  const std::string part = internal::EncodePart("parts", {}, "abc");
  REPRISE_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> all, ExchangeWith(Header(kData, part.size()) + part));
  EXPECT_THAT(all, ElementsAre("x", "abc"));
}

}  // namespace
}  // namespace reprise::testing
