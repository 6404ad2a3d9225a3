// Memory of a program: aligned, zeroed, and given by the system page by page as it is touched.
#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

namespace batchgen {

// One mapping, aligned to cache lines; large ones to huge pages, which the system is advised to use.
class Memory {
  public:
    // Throws std::bad_alloc where the system has no room.
    explicit Memory(size_t bytes);
    ~Memory();
    Memory(Memory&& other) noexcept;
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;
    Memory& operator=(Memory&&) = delete;

    template <typename T>
    T* as() const {
        return static_cast<T*>(data_);
    }
    size_t bytes() const { return bytes_; }

  private:
    void* mapped_ = nullptr;
    size_t mapped_bytes_ = 0;
    void* data_ = nullptr;
    size_t bytes_ = 0;
};

// Many arrays side by side in few mappings, so that small ones share huge pages too. Nothing is given back before the
// end.
class Arena {
  public:
    // `count` zeroed values, aligned to cache lines.
    template <typename T>
    T* take(size_t count) {
        return static_cast<T*>(take_bytes(count * sizeof(T)));
    }

    // A copy of `count` values; null for null.
    template <typename T>
    const T* copy(const T* values, size_t count) {
        if (!values) return nullptr;
        return static_cast<const T*>(std::memcpy(take<T>(count), values, count * sizeof(T)));
    }

  private:
    void* take_bytes(size_t bytes);

    std::vector<Memory> chunks_;
    size_t used_ = 0;  // bytes of the last chunk
};

}  // namespace batchgen
