// Ranks as threads: the checks that every transport must pass, rendezvous, abort, deadline.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <limits>

#include "impl/comm/agreement.h"
#include "impl/comm/collectives.h"
#include "impl/comm/launcher.h"
#include "impl/comm/look_pace.h"
#include "impl/comm/network_counters.h"
#include "tests/unit/comm_checks.h"
#include "tests/unit/comm_ranks.h"

namespace lamina {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
constexpr TrafficTag kTag{TrafficKind::data_reduce, UnitKind::layer};

struct Setting {
  CommCheck check;
  int ranks;
  EmulatedLink link;
};

std::string name_of_setting(const testing::TestParamInfo<Setting>& setting) {
  return fmt::format("{}_{}_ranks{}", setting.param.check.name, setting.param.ranks,
                     setting.param.link.bandwidth_bits_per_s > 0 ? "_emulated_link" : "");
}

class EveryTransport : public testing::TestWithParam<Setting> {};

TEST_P(EveryTransport, Check) {
  const Setting& setting = GetParam();
  ThreadsFabric fabric(setting.ranks, setting.link);
  run_ranks(fabric, setting.ranks, setting.check.run);
  EXPECT_EQ(fabric.abort_reason(), "");
}

std::vector<Setting> settings() {
  std::vector<Setting> all;
  for (const CommCheck& check : comm_checks()) {
    for (const int ranks : {1, 2, 3, 5, 8}) {
      all.push_back({check, ranks, {}});
    }
    all.push_back({check, 3, {200e9, 30e-6}});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Threads, EveryTransport, testing::ValuesIn(settings()), name_of_setting);

TEST(ThreadsFabric, SendEndsOnlyOnceTheReceiveIsPosted) {
  ThreadsFabric fabric(2, {});
  std::atomic<bool> posted = false;
  const auto failures = run_ranks(fabric, 2, [&](Transport& transport) {
    const auto group = transport.group({0, 1});
    std::byte byte{42};
    if (transport.rank() == 0) {
      group->send(1, {&byte, 1}, kTag)->wait();
      LAMINA_CHECK(posted.load(), "the send ended before its receive");
    } else {
      byte = {};
      std::this_thread::sleep_for(50ms);
      posted = true;
      group->receive(0, {&byte, 1})->wait();
      LAMINA_CHECK(byte == std::byte{42}, "received {}", std::to_integer<int>(byte));
    }
  });
  EXPECT_THAT(failures, ElementsAre("", ""));
}

TEST(ThreadsFabric, AbortEndsEveryWaitAndEveryLaterCall) {
  // Rank 0 waits for a message that nobody sends, ranks 1 and 2 for one that takes 10⁵ seconds on the link.
  ThreadsFabric fabric(4, {1e3, 0});
  std::vector<std::byte> buffer0(8), buffer1(12'500'000), buffer2(12'500'000);
  const auto start = Clock::now();
  const auto failures = run_ranks(fabric, 4, [&](Transport& transport) {
    const auto all = transport.group({0, 1, 2, 3});
    const auto later_call = [&](auto&& wait) {
      try {
        wait();
        throw std::runtime_error("the wait ended");
      } catch (const Aborted&) {
        all->send(3, buffer0, kTag);
      }
    };
    switch (transport.rank()) {
      case 0:
        return later_call([&] { all->receive(3, buffer0)->wait(); });
      case 1:
        return later_call([&] { all->send(2, buffer1, kTag)->wait(); });
      case 2:
        return later_call([&] { all->receive(1, buffer2)->wait(); });
      default:
        std::this_thread::sleep_for(100ms);
        transport.abort("first");
        transport.abort("second");
        transport.group({3});
    }
  });
  EXPECT_THAT(failures, ElementsAre("aborted: first", "aborted: first", "aborted: first", "aborted: first"));
  EXPECT_EQ(fabric.abort_reason(), "first");
  EXPECT_LT(Clock::now() - start, 5s);
}

TEST(ThreadsFabric, RankThatThrowsInsideACollectiveEndsTheOthers) {
  ThreadsFabric fabric(5, {});
  const auto failures = run_ranks(fabric, 5, [&](Transport& transport) {
    const auto group = transport.group({0, 1, 2, 3, 4});
    std::vector<float> values(500'000, 1.0F);
    for (int turn = 0; turn < 10; ++turn) {
      if (transport.rank() == 3 && turn == 4) {
        throw std::runtime_error("out of luck");
      }
      all_reduce<float>(*group, values, kTag);
    }
  });
  EXPECT_THAT(failures, ElementsAre("aborted: rank 3: out of luck", "aborted: rank 3: out of luck",
                                    "aborted: rank 3: out of luck", "out of luck", "aborted: rank 3: out of luck"));
}

TEST(ThreadsFabric, DeadlineNamesPeerBytesAndTime) {
  ThreadsFabric fabric(3, {});
  const auto failures = run_ranks(fabric, 3, [&](Transport& transport) {
    const auto group = transport.group({2, 0, 1});
    std::vector<std::byte> buffer(12345);
    if (transport.rank() == 1) {
      transport.set_deadline(0.2s);
      group->receive(0, buffer)->wait();  // world rank 2
    }
  });
  EXPECT_THAT(failures[1], AllOf(HasSubstr("rank 1 waited 0.2 s"), HasSubstr("12345 bytes from rank 2")));
  EXPECT_THAT(fabric.abort_reason(), StartsWith("rank 1: rank 1 waited"));
}

TEST(ThreadsFabric, DeadlineHoldsForASlowLinkToo) {
  ThreadsFabric fabric(2, {1e3, 0});
  const auto failures = run_ranks(fabric, 2, [&](Transport& transport) {
    const auto group = transport.group({0, 1});
    std::vector<std::byte> buffer(1'000'000);
    if (transport.rank() == 0) {
      transport.set_deadline(0.1s);
      group->send(1, buffer, kTag)->wait();
    } else {
      group->receive(0, buffer)->wait();
    }
  });
  EXPECT_THAT(failures[0], AllOf(HasSubstr("1000000 bytes to rank 1"), HasSubstr("slower than the deadline")));
  EXPECT_THAT(failures[1], StartsWith("aborted: rank 0: rank 0 waited"));
}

TEST(ThreadsFabric, DestroyedRequestLeavesItsBufferAlone) {
  ThreadsFabric fabric(2, {});
  const auto failures = run_ranks(fabric, 2, [&](Transport& transport) {
    const auto group = transport.group({0, 1});
    const auto other = transport.group({0, 1});
    std::byte token{};
    std::vector<std::byte> buffer(1000, std::byte{static_cast<unsigned char>(transport.rank())});
    if (transport.rank() == 0) {
      group->receive(1, buffer).reset();  // before the send
      auto matched = group->receive(1, buffer);
      other->receive(1, {&token, 1})->wait();  // the send is posted now
      matched.reset();
      other->send(1, {&token, 1}, kTag)->wait();
      std::this_thread::sleep_for(20ms);
      LAMINA_CHECK(std::count(buffer.begin(), buffer.end(), std::byte{0}) == 1000, "a withdrawn receive was written");
    } else {
      const auto send = group->send(0, buffer, kTag);
      other->send(0, {&token, 1}, kTag)->wait();
      other->receive(0, {&token, 1})->wait();
      transport.set_deadline(0.1s);
      send->wait();
    }
  });
  EXPECT_THAT(failures[0], "");
  EXPECT_THAT(failures[1], HasSubstr("1000 bytes to rank 0"));
}

TEST(ThreadsFabric, RefusesNonsense) {
  EXPECT_THROW(ThreadsFabric(0, {}), Error);
  EXPECT_THROW(ThreadsFabric(2, {-1, 0}), Error);
  EXPECT_THROW(ThreadsFabric(2, {1e9, -1}), Error);
  EXPECT_THROW(ThreadsFabric(2, {std::numeric_limits<double>::quiet_NaN(), 0}), Error);
  ThreadsFabric fabric(2, {});
  EXPECT_THROW(fabric.endpoint(2), Error);
  EXPECT_THROW(fabric.endpoint(-1), Error);
  const auto group = fabric.endpoint(0).group({0, 1});
  std::byte byte{};
  EXPECT_THROW(group->receive(0, {&byte, 1}), Error);
  EXPECT_THROW(group->receive(2, {&byte, 1}), Error);
  EXPECT_THROW(group->collective({.type = RealType::fp32, .values = {}}, 0, kTag), Error);
  EXPECT_THROW(fabric.endpoint(0).group({0, 1}, CollectiveBackend::library), Error);
}

class LookPaceTest : public testing::Test {
 protected:
  LookPaceTest() { pace_.begins(now_); }

  // Ends of `bytes` each, seen every `gap_s`; then so long to the next look, with `under_way` bytes under way.
  double after(double gap_s, std::int64_t bytes, std::int64_t under_way, int ends = 20) {
    for (int i = 0; i < ends; ++i) {
      now_ += std::chrono::round<Clock::duration>(std::chrono::duration<double>(gap_s));
      pace_.ended(now_, bytes, under_way);
    }
    return pace_.next_s(now_, under_way);
  }

  static constexpr double kRule_s = 200e-6;
  static constexpr std::int64_t kChunk = 256 << 10;
  Clock::time_point now_ = Clock::now();
  LookPace pace_{kRule_s};
};

TEST_F(LookPaceTest, LooksAreAsRareAsMuchDataOnASlowLinkLetsThem) {
  EXPECT_EQ(pace_.next_s(now_, 16 * kChunk), kRule_s);  // nothing has ended yet
  EXPECT_NEAR(after(1.2e-3, kChunk, 16 * kChunk), 0.8e-3, 1e-6);
  EXPECT_EQ(after(8e-3, kChunk, 16 * kChunk), LookPace::kLongest_s);
  EXPECT_EQ(after(kRule_s / 2, kChunk, 16 * kChunk), kRule_s);  // a fast link
}

// On a fast link a message ends some looks after it began, whatever its size: looks must not grow with what they cause.
TEST_F(LookPaceTest, LooksThatEndsWaitForStayFrequent) {
  double look_s = LookPace::kLongest_s;
  for (int message = 0; message < 20; ++message) {
    look_s = after(5 * look_s, 4 * kChunk, 4 * kChunk, 1);
  }
  EXPECT_EQ(look_s, kRule_s);
}

TEST_F(LookPaceTest, LittleDataIsLookedAtAsARule) {
  EXPECT_EQ(after(8e-3, 100, 1000), kRule_s);
  EXPECT_EQ(after(8e-3, kChunk, LookPace::kMuchBytes - 1), kRule_s);
  EXPECT_EQ(after(kRule_s, 100, 1000), kRule_s);
}

TEST_F(LookPaceTest, ShortMessagesSayNothingOfTheLink) {
  after(8e-3, 100, 1000);
  EXPECT_EQ(pace_.next_s(now_, 16 * kChunk), kRule_s);
}

TEST_F(LookPaceTest, AFewEndsAreEnoughToFollowTheLink) {
  after(8e-3, kChunk, 16 * kChunk);
  EXPECT_EQ(after(kRule_s / 2, kChunk, 16 * kChunk, 8), kRule_s);
  EXPECT_GT(after(8e-3, kChunk, 16 * kChunk, 2), 4 * kRule_s);
}

TEST_F(LookPaceTest, WhereNothingEndsLooksAreRareButTimeWithNothingUnderWayDoesNotCount) {
  after(kRule_s, kChunk, 16 * kChunk);
  now_ += 60ms;
  EXPECT_EQ(pace_.next_s(now_, 1000), LookPace::kQuietFactor * kRule_s);
  pace_.begins(now_);
  EXPECT_EQ(pace_.next_s(now_, 1000), kRule_s);
}

TEST(Launcher, IsFoundByTheSizeItAnnounces) {
  const auto with = [](std::string_view variable, const char* value) {
    return launched_ranks([=](const char* asked) { return variable == asked ? value : nullptr; });
  };
  EXPECT_FALSE(with("", nullptr));
  EXPECT_FALSE(with("PMI_SIZE", "1"));
  EXPECT_FALSE(with("PMI_SIZE", "many"));
  for (const char* variable : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    const auto launched = with(variable, "12");
    ASSERT_TRUE(launched) << variable;
    EXPECT_EQ(launched->ranks, 12);
    EXPECT_EQ(launched->variable, variable);
    EXPECT_THROW(check_library_fits_launcher(1, launched), Error);
    EXPECT_NO_THROW(check_library_fits_launcher(12, launched));
    EXPECT_NO_THROW(check_library_fits_launcher(3, launched));
  }
  EXPECT_NO_THROW(check_library_fits_launcher(1, std::nullopt));
}

TEST(NetworkCounters, ReadInterfacesAndInfinibandPorts) {
  namespace fs = std::filesystem;
  const fs::path system = fs::path(testing::TempDir()) / fmt::format("network_counters_{}", ::getpid());
  const auto write = [&](const fs::path& file, std::int64_t number) {
    fs::create_directories((system / file).parent_path());
    std::ofstream(system / file) << number << '\n';
  };
  write("sys/class/net/eth0/statistics/tx_bytes", 5'000'000'000'000);
  write("sys/class/net/eth0/statistics/rx_bytes", 7);
  write("sys/class/net/down/statistics/tx_bytes", 1);  // and no rx_bytes
  write("sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data", 100);
  write("sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data", 30);
  const auto before = network_counters(system);
  EXPECT_EQ(before, (std::vector<PortBytes>{{"eth0", 5'000'000'000'000, 7}, {"infiniband mlx5_0/1", 400, 120}}));
  write("sys/class/net/eth0/statistics/tx_bytes", 5'000'000'000'100);
  write("sys/class/infiniband/mlx5_1/ports/1/counters/port_xmit_data", 1);
  write("sys/class/infiniband/mlx5_1/ports/1/counters/port_rcv_data", 1);
  EXPECT_EQ(counted_between(before, network_counters(system)),
            (std::vector<PortBytes>{{"eth0", 100, 0}, {"infiniband mlx5_0/1", 0, 0}}));
  fs::remove_all(system);
  EXPECT_TRUE(network_counters(system).empty());
}

TEST(Agreement, NamesTheRanksThatDiffer) {
  ThreadsFabric fabric(4, {});
  const auto failures = run_ranks(fabric, 4, [](Transport& transport) {
    check_same_everywhere(transport, "plan", "0123456789abcdef");
    const std::string hash = transport.rank() == 1 || transport.rank() == 3 ? "bad" : "good";
    try {
      check_same_everywhere(transport, "plan", hash);
    } catch (const UsageError& error) {
      LAMINA_CHECK(std::string_view(error.what()) ==
                       "the ranks were started with different plans: ranks 1, 3 have bad, rank 0 has good",
                   "said '{}'", error.what());
      return;
    }
    throw Error("nobody minded");
  });
  EXPECT_THAT(failures, testing::Each(""));
}

}  // namespace
}  // namespace lamina
